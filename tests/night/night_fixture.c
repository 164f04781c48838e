/* night_fixture.c - see the header. */
#define _GNU_SOURCE
#include "night_fixture.h"

#include "../scratch.h"
#include "json/json.h"
#include "sys/sys.h"

#include <sqlite3.h>

static void must(enum ns_code rc, const struct ns_error *err)
{
    if (rc == NS_OK)
        return;
    char text[4400];
    ns_error_text(err, text, sizeof text);
    fail_msg("%s", text);
}

void night_fixture_open(struct night_fixture *f)
{
    *f = (struct night_fixture){0};
    scratch_folder(f->dir, sizeof f->dir);
    snprintf(f->jobs, sizeof f->jobs, "%s/jobs.jsonl", f->dir);
    ns_budget_init(&f->budget, "test", (size_t)256 << 20);
    ns_host_init();
    ns_queue_library_init();
    night_fixture_new_queue(f);
}

void night_fixture_in_memory(void)
{
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
}

static enum ns_code remove_entry(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    (void)bytes;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", (const char *)arg, name);
    return ns_file_unlink(path, err);
}

static void empty_folder(const char *dir)
{
    if (!ns_path_exists(dir))
        return;
    struct ns_error err = {0};
    enum ns_code rc = ns_dir_each(dir, remove_entry, (void *)(uintptr_t)dir, &err);
    must(rc, &err);
}

static void remove_queue(struct night_fixture *f)
{
    char state[128];
    snprintf(state, sizeof state, "%s.state", f->db);
    empty_folder(state);
    rmdir(state);
    empty_folder(f->dir);
}

void night_fixture_close(struct night_fixture *f)
{
    remove_queue(f);
    rmdir(f->dir);
    assert_int_equal(ns_budget_used(&f->budget), 0);
}

void night_fixture_new_queue(struct night_fixture *f)
{
    if (f->db[0])
        remove_queue(f);
    snprintf(f->db, sizeof f->db, "%s/q.db", f->dir);
    struct ns_error err = {0};
    must(ns_queue_create(f->db, &err), &err);
}

static void put_ids(FILE *out, uint64_t *rnd, size_t n)
{
    fputc('[', out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s%u", i ? "," : "", (unsigned)(test_random(rnd) % 4900));
    fputc(']', out);
}

static void put_line(FILE *out, uint64_t *rnd, size_t i)
{
    uint64_t kind = test_random(rnd) % 4;
    size_t n = 1 + test_random(rnd) % 40;
    unsigned max_tokens = (unsigned)(1 + test_random(rnd) % 40);
    if (kind == 0) {
        fprintf(out, "{\"custom_id\":\"c%zu\",\"prompt\":", i);
        put_ids(out, rnd, n);
        fprintf(out, ",\"choices\":[");
        for (size_t c = 0; c < 3; c++) {
            fputs(c ? "," : "", out);
            put_ids(out, rnd, 1 + test_random(rnd) % 4);
        }
        fprintf(out, "],\"answer\":1}\n");
    } else if (kind == 1) {
        fprintf(out, "{\"custom_id\":\"p%zu\",\"prompt\":", i);
        put_ids(out, rnd, n);
        fprintf(out, ",\"max_tokens\":%u}\n", max_tokens);
    } else {
        fprintf(out,
                "{\"custom_id\":\"o%zu\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m\",",
                i);
        fprintf(out, "\"prompt\":");
        put_ids(out, rnd, n);
        fprintf(out, ",\"max_tokens\":%u,\"logprobs\":%u,\"echo\":%s,\"ignore_eos\":%s,\"return_token_ids\":true}}\n",
                max_tokens, (unsigned)(test_random(rnd) % 4), kind == 2 ? "true" : "false",
                test_random(rnd) % 2 ? "true" : "false");
    }
}

void night_fixture_submit_file(struct night_fixture *f)
{
    struct ns_error err = {0};
    struct ns_queue *queue = NULL;
    must(ns_queue_open(f->db, NS_QUEUE_WRITE, false, &f->budget, &queue, &err), &err);
    struct ns_submit_options options = {.priority = 5};
    struct ns_submit_report report;
    must(ns_queue_submit(queue, f->jobs, &options, &report, &err), &err);
    ns_submit_report_fini(&report);
    ns_queue_close(queue);
}

void night_fixture_submit(struct night_fixture *f, uint64_t seed, size_t n_requests)
{
    FILE *out = fopen(f->jobs, "w");
    assert_non_null(out);
    for (size_t i = 0; i < n_requests; i++)
        put_line(out, &seed, i);
    assert_int_equal(fclose(out), 0);
    night_fixture_submit_file(f);
}

void night_fixture_submit_text(struct night_fixture *f, const char *lines)
{
    FILE *out = fopen(f->jobs, "w");
    assert_non_null(out);
    fputs(lines, out);
    assert_int_equal(fclose(out), 0);
    night_fixture_submit_file(f);
}

enum ns_code night_fixture_run(struct night_fixture *f, struct fake_machine *fake, uint32_t rows, bool once,
                               struct ns_night_report *report, struct ns_error *err)
{
    struct ns_job_model job;
    enum ns_code rc = ns_job_model_init(&job, NULL, "fake-fingerprint", "f32x16.1", fake->vocab, 4096,
                                        (int32_t)fake->stop_token, NULL, 0, err);
    if (rc != NS_OK)
        return rc;
    struct ns_night_model model = {
        .machine = fake_machine_ops(fake, 4096, 4096),
        .job = &job,
        .dir = f->dir,
        .tokenizer_fingerprint = "none",
        .numbers = f->numbers,
        .division = f->division,
    };
    struct ns_night_options options = {.db_path = f->db,
                                       .model_dir = f->dir,
                                       .wave_rows = rows,
                                       .once = once,
                                       .order = f->order,
                                       .takeover = f->takeover};
    return ns_night_run_model(&options, &model, &f->budget, report, err);
}

static void note_finding(void *arg, const char *invariant, bool is_note, int64_t ref, const char *text)
{
    (void)arg;
    if (!is_note)
        print_error("doctor: %s: %lld: %s\n", invariant, (long long)ref, text);
}

static int64_t examine(struct night_fixture *f, ns_finding_fn each)
{
    struct ns_error err = {0};
    struct ns_queue *queue = NULL;
    must(ns_queue_open(f->db, NS_QUEUE_READ, false, &f->budget, &queue, &err), &err);
    struct ns_doctor_options options = {.deep = true, .check_side = ns_side_verify};
    int64_t findings = -1;
    must(ns_queue_doctor(queue, &options, each, NULL, &findings, &err), &err);
    ns_queue_close(queue);
    return findings;
}

void night_fixture_check(struct night_fixture *f)
{
    assert_int_equal(examine(f, note_finding), 0);
}

static void ignore_finding(void *arg, const char *invariant, bool is_note, int64_t ref, const char *text)
{
    (void)arg;
    (void)invariant;
    (void)is_note;
    (void)ref;
    (void)text;
}

int64_t night_fixture_findings(struct night_fixture *f)
{
    return examine(f, ignore_finding);
}

struct tally_walk {
    struct night_tally *tally;
    struct ns_sha256 *hash;
    const char *wanted;
    char *out;
    size_t size;
};

/* A body without what may differ between runs: ids and times. */
static void add_body(struct ns_sha256 *hash, const char *text, struct ns_budget *budget)
{
    struct ns_error err = {0};
    struct ns_json *doc = NULL;
    must(ns_json_parse(text, strlen(text), &doc, &err), &err);
    for (void *it = ns_json_first(doc); it; it = ns_json_next(doc, it)) {
        const char *key = ns_json_key(it);
        if (strcmp(key, "id") == 0 || strcmp(key, "created") == 0 || strcmp(key, "x_local") == 0)
            continue;
        struct ns_text value;
        ns_text_init(&value, budget);
        struct ns_json_writer w;
        ns_json_begin(&w, &value);
        ns_json_put_value(&w, ns_json_value(it));
        ns_sha256_add(hash, key, strlen(key));
        ns_sha256_add(hash, value.data, value.n);
        ns_text_fini(&value);
    }
    ns_json_free(doc);
}

static struct ns_budget walk_budget;

static enum ns_code tally_request(void *arg, const struct ns_request_info *r, struct ns_error *err)
{
    (void)err;
    struct tally_walk *walk = arg;
    struct night_tally *t = walk->tally;
    t->queued += strcmp(r->state, "queued") == 0;
    t->running += strcmp(r->state, "running") == 0;
    t->done += strcmp(r->state, "done") == 0;
    t->failed += strcmp(r->state, "failed") == 0;
    t->n_out += r->n_out;
    if (walk->wanted && r->custom_id && strcmp(r->custom_id, walk->wanted) == 0)
        snprintf(walk->out, walk->size, "%s", r->response ? r->response : r->error ? r->error : "");
    ns_sha256_add(walk->hash, r->state, strlen(r->state));
    if (r->custom_id)
        ns_sha256_add(walk->hash, r->custom_id, strlen(r->custom_id));
    if (r->response)
        add_body(walk->hash, r->response, &walk_budget);
    if (r->error)
        add_body(walk->hash, r->error, &walk_budget);
    return NS_OK;
}

static void walk_requests(struct night_fixture *f, struct tally_walk *walk)
{
    struct ns_error err = {0};
    struct ns_queue *queue = NULL;
    ns_budget_init(&walk_budget, "walk", (size_t)64 << 20);
    must(ns_queue_open(f->db, NS_QUEUE_READ, false, &f->budget, &queue, &err), &err);
    struct ns_selection all = {0};
    must(ns_queue_each_request(queue, &all, true, tally_request, walk, &err), &err);
    ns_queue_close(queue);
}

void night_fixture_tally(struct night_fixture *f, struct night_tally *out)
{
    *out = (struct night_tally){0};
    struct tally_walk walk = {.tally = out, .hash = ns_sha256_open()};
    assert_non_null(walk.hash);
    walk_requests(f, &walk);
    ns_sha256_close(walk.hash, out->digest);
}

void night_fixture_result(struct night_fixture *f, const char *custom_id, char *out, size_t size)
{
    struct night_tally tally = {0};
    struct tally_walk walk = {.tally = &tally, .hash = ns_sha256_open(), .wanted = custom_id, .out = out, .size = size};
    assert_non_null(walk.hash);
    out[0] = '\0';
    walk_requests(f, &walk);
    ns_sha256_close(walk.hash, tally.digest);
}

int64_t night_fixture_number(const struct night_fixture *f, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open_v2(f->db, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(stmt, 0);
    assert_int_equal(sqlite3_finalize(stmt), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    return n;
}
