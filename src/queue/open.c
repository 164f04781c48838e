/* open.c - making and opening a queue, with every setting read back.
 *
 * WHAT   create builds a new file under a temporary name and renames it, so a queue exists whole or not at all. connect
 *        opens, checks whose file it is and which schema it has, applies the settings of its use, and asks for each of
 *        them again: a misspelt PRAGMA is silently ignored by the library.
 * WHY    WAL and synchronous FULL: what a COMMIT acknowledged survives a power cut, and readers never block the runner.
 *        The cost, a few milliseconds per wave, is nothing beside a wave. schema/README.md tells what may be lost when.
 * INVARIANTS
 *   1. Only create makes a file; a wrong path is an error, not an empty queue.     (open_test: missing_file_is_refused)
 *   2. A connection whose settings do not read back is not given out.              (open_test: settings_read_back)
 *   3. Other files, newer and older schemas are refused, untouched.                (open_test: refuses_other_files) */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- the library ----------------------------------------------------------------------------------------------------- */

/* The library asks for the size of its blocks, so each carries it in front. */
#define BLOCK_HEAD 16

static void *hook_alloc(int bytes)
{
    unsigned char *block = bytes <= 0 ? NULL : ns_heap_alloc((size_t)bytes + BLOCK_HEAD);
    if (!block)
        return NULL;
    ns_put_le32(block, (uint32_t)bytes);
    return block + BLOCK_HEAD;
}

static void hook_free(void *p)
{
    if (p)
        ns_heap_free((unsigned char *)p - BLOCK_HEAD);
}

static int hook_size(void *p)
{
    return p ? (int)ns_le32((unsigned char *)p - BLOCK_HEAD) : 0;
}

static void *hook_resize(void *p, int bytes)
{
    unsigned char *block = ns_heap_resize((unsigned char *)p - BLOCK_HEAD, (size_t)bytes + BLOCK_HEAD);
    if (!block)
        return NULL;
    ns_put_le32(block, (uint32_t)bytes);
    return block + BLOCK_HEAD;
}

static int hook_round(int bytes)
{
    return (bytes + 7) & ~7;
}

static int hook_init(void *arg)
{
    (void)arg;
    return SQLITE_OK;
}

static void hook_shutdown(void *arg)
{
    (void)arg;
}

void ns_queue_library_init(void)
{
    static const sqlite3_mem_methods methods = {hook_alloc, hook_free, hook_resize,   hook_size,
                                                hook_round, hook_init, hook_shutdown, NULL};
    sqlite3_config(SQLITE_CONFIG_MALLOC, &methods); /* refused after the first use: then the default stays, no harm */
}

const char *ns_queue_library_version(void)
{
    return sqlite3_libversion();
}

/* ---- settings ---------------------------------------------------------------------------------------------------------- */

struct setting {
    const char *set, *ask, *expected;
    bool writers_only;
};

/* clang-format off */
static const struct setting settings[] = {
    {"PRAGMA foreign_keys=ON",              "PRAGMA foreign_keys",       "1",        false},
    {"PRAGMA trusted_schema=OFF",           "PRAGMA trusted_schema",     "0",        false},
    {"PRAGMA cell_size_check=ON",           "PRAGMA cell_size_check",    "1",        false},
    {"PRAGMA mmap_size=0",                  "PRAGMA mmap_size",          "0",        false},
    {"PRAGMA temp_store=MEMORY",            "PRAGMA temp_store",         "2",        false},
    {"PRAGMA wal_autocheckpoint=0",         "PRAGMA wal_autocheckpoint", "0",        false},
    {"PRAGMA secure_delete=OFF",            "PRAGMA secure_delete",      "0",        true},
    {"PRAGMA cache_size=-8192",             "PRAGMA cache_size",         "-8192",    true},
    {"PRAGMA journal_size_limit=67108864",  "PRAGMA journal_size_limit", "67108864", true},
};

/* clang-format on */

static enum ns_code set_one(struct ns_queue *q, const char *set, const char *ask, const char *expected,
                            struct ns_error *err)
{
    int rc = set ? sqlite3_exec(q->db, set, NULL, NULL, NULL) : SQLITE_OK;
    if (rc != SQLITE_OK)
        return ns_sql_fail(q, rc, set, err);
    sqlite3_stmt *stmt = NULL;
    rc = sqlite3_prepare_v2(q->db, ask, -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    /* no row: compiled without it, which for mmap_size means what we want */
    const char *got = rc == SQLITE_ROW ? ns_sql_text(stmt, 0) : "0";
    enum ns_code code = NS_OK;
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        code = ns_sql_fail(q, rc, ask, err);
    else if (!got)
        code = ns_sql_fetched(q, err);
    if (code != NS_OK) {
        sqlite3_finalize(stmt);
        return code;
    }
    if (!got || strcmp(got, expected) != 0)
        code = ns_error_set(err, NS_CONFIG, "%s: %s reads back %s instead of %s", q->path, ask, got ? got : "nothing",
                            expected);
    sqlite3_finalize(stmt);
    return code;
}

static enum ns_code set_config(struct ns_queue *q, int option, int on, const char *name, struct ns_error *err)
{
    int got = -1;
    int rc = sqlite3_db_config(q->db, option, on, &got);
    if (rc != SQLITE_OK || got != on)
        return ns_error_set(err, NS_CONFIG, "%s: the library refuses %s", q->path, name);
    return NS_OK;
}

static enum ns_code apply_settings(struct ns_queue *q, enum ns_use use, bool single_owner, struct ns_error *err)
{
    bool writes = use != NS_USE_READ;
    enum ns_code rc = NS_OK;
    if (single_owner) /* before the first access, so that no shared memory is used */
        rc = set_one(q, "PRAGMA locking_mode=EXCLUSIVE", "PRAGMA locking_mode", "exclusive", err);
    for (size_t i = 0; rc == NS_OK && i < NS_COUNT(settings); i++)
        if (writes || !settings[i].writers_only)
            rc = set_one(q, settings[i].set, settings[i].ask, settings[i].expected, err);
    if (rc == NS_OK && writes)
        rc = use == NS_USE_HEARTBEAT ? set_one(q, "PRAGMA synchronous=NORMAL", "PRAGMA synchronous", "1", err)
                                     : set_one(q, "PRAGMA synchronous=FULL", "PRAGMA synchronous", "2", err);
    if (rc == NS_OK && !writes)
        rc = set_one(q, "PRAGMA query_only=ON", "PRAGMA query_only", "1", err);
    if (rc == NS_OK)
        rc = set_config(q, SQLITE_DBCONFIG_DEFENSIVE, 1, "the defensive mode", err);
    bool may_checkpoint = use == NS_USE_WRITE || use == NS_USE_RUNNER;
    if (rc == NS_OK)
        rc = set_config(q, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !may_checkpoint, "closing without a checkpoint", err);
    return rc;
}

/* ---- opening ----------------------------------------------------------------------------------------------------------- */

static bool is_far(const char *path, char name[32])
{
    char folder[NS_PATH_SIZE];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    else
        snprintf(folder, sizeof folder, ".");
    return ns_host_is_network_fs(folder, name);
}

#define NOT_TRUSTED "where locks and shared memory cannot be trusted and queues have been destroyed"

/* Of a link both places count: locks and states lie beside the link, pages and their log beside what it points to. */
static bool is_on_network(const char *path, char name[32])
{
    char real[NS_PATH_SIZE];
    bool leads_on = ns_path_real(path, real, NULL) == NS_OK;
    return is_far(path, name) || (leads_on && is_far(real, name));
}

static enum ns_code refuse_network(const char *path, struct ns_error *err)
{
    char name[32];
    if (!is_on_network(path, name))
        return NS_OK;
    return ns_error_set(err, NS_CONFIG,
                        "%s lies on %s, " NOT_TRUSTED "; copy it to a local disk with \"nightshift backup "
                        "--single-owner FILE\", or insist with \"nightshift run --single-owner\": both lock everybody "
                        "else out",
                        path, name);
}

static enum ns_code refuse_to_make(const char *path, struct ns_error *err)
{
    char name[32];
    if (!is_on_network(path, name))
        return NS_OK;
    return ns_error_set(err, NS_CONFIG, "%s would lie on %s, " NOT_TRUSTED "; choose a folder on a local disk", path,
                        name);
}

static enum ns_code check_file(struct ns_queue *q, struct ns_error *err)
{
    int64_t id = 0, version = 0;
    enum ns_code rc = ns_sql_value(q, &id, NULL, err, "PRAGMA application_id", "");
    if (rc == NS_OK && id != NS_APPLICATION_ID)
        return ns_error_set(err, NS_INPUT, "%s is not a nightshift queue (application id %" PRIx64 ")", q->path,
                            (uint64_t)id);
    if (rc == NS_OK)
        rc = ns_sql_value(q, &version, NULL, err, "PRAGMA user_version", "");
    if (rc != NS_OK)
        return rc;
    if (version > NS_SCHEMA_VERSION)
        return ns_error_set(err, NS_INPUT, "%s has schema %" PRId64 ", this program knows up to %d: use a newer one",
                            q->path, version, NS_SCHEMA_VERSION);
    if (version < NS_SCHEMA_VERSION)
        return ns_error_set(err, NS_MIGRATE,
                            "%s has schema %" PRId64
                            ", this program needs %d and cannot bring it there: use the program "
                            "that made it",
                            q->path, version, NS_SCHEMA_VERSION);
    return q->still ? NS_OK : set_one(q, NULL, "PRAGMA journal_mode", "wal", err);
}

static int note_wal(void *arg, sqlite3 *db, const char *name, int pages)
{
    (void)db;
    (void)name;
    ((struct ns_queue *)arg)->wal_pages = pages;
    return SQLITE_OK;
}

static enum ns_code open_database(const char *path, int flags, struct ns_budget *budget, struct ns_queue **out,
                                  struct ns_error *err)
{
    if (strlen(path) >= NS_PATH_SIZE - 64)
        return ns_error_set(err, NS_USAGE, "the path of the queue has %zu bytes, at most %d are allowed", strlen(path),
                            NS_PATH_SIZE - 65);
    struct ns_queue *q = ns_budget_take(budget, sizeof *q, err);
    if (!q)
        return NS_BUDGET;
    q->budget = budget;
    snprintf(q->path, sizeof q->path, "%s", path);
    int rc = sqlite3_open_v2(path, &q->db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, NULL);
    if (rc != SQLITE_OK) {
        enum ns_code code = ns_sql_fail(q, rc, "opening", err);
        ns_queue_close(q);
        return code;
    }
    *out = q;
    return NS_OK;
}

/* A reader: with locks, or without them where no file may be made beside the queue. */
static enum ns_code open_to_read(const char *path, struct ns_budget *budget, struct ns_queue **out,
                                 struct ns_error *err)
{
    char real[NS_PATH_SIZE];
    struct ns_still *still = NULL;
    enum ns_code rc = ns_path_real(path, real, err);
    if (rc == NS_OK)
        rc = ns_still_open(real, budget, &still, err);
    if (rc != NS_OK || !still)
        return rc == NS_OK ? open_database(path, SQLITE_OPEN_READONLY, budget, out, err) : rc;
    struct ns_text uri;
    ns_text_init(&uri, budget);
    rc = ns_still_uri(real, &uri, err);
    if (rc == NS_OK)
        rc = open_database(uri.data, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, budget, out, err);
    ns_text_fini(&uri);
    if (rc != NS_OK) {
        ns_still_close(still);
        return rc;
    }
    (*out)->still = still;
    snprintf((*out)->path, sizeof(*out)->path, "%s", path);
    return NS_OK;
}

enum ns_code ns_queue_connect(const char *path, enum ns_use use, bool single_owner, struct ns_budget *budget,
                              struct ns_queue **out, struct ns_error *err)
{
    if (!ns_path_exists(path))
        return ns_error_set(err, NS_NOINPUT, "there is no queue at %s; nightshift init makes one", path);
    enum ns_code rc = single_owner ? NS_OK : refuse_network(path, err);
    if (rc != NS_OK)
        return rc;
    struct ns_queue *q = NULL;
    rc = use == NS_USE_READ && !single_owner ? open_to_read(path, budget, &q, err)
                                             : open_database(path, SQLITE_OPEN_READWRITE, budget, &q, err);
    if (rc != NS_OK)
        return rc;
    q->reads_only = use == NS_USE_READ;
    sqlite3_busy_timeout(q->db, use == NS_USE_RUNNER  ? NS_RUNNER_WAIT_MS
                                : use == NS_USE_WRITE ? NS_WRITE_WAIT_MS
                                                      : NS_READ_WAIT_MS);
    rc = apply_settings(q, use, single_owner, err);
    if (rc == NS_OK)
        rc = check_file(q, err);
    if (rc != NS_OK) {
        ns_queue_close(q);
        return ns_error_wrap(err, rc, "queue");
    }
    sqlite3_wal_hook(q->db, note_wal, q);
    *out = q;
    return NS_OK;
}

enum ns_code ns_queue_open(const char *path, enum ns_queue_mode mode, bool single_owner, struct ns_budget *budget,
                           struct ns_queue **out, struct ns_error *err)
{
    return ns_queue_connect(path, mode == NS_QUEUE_READ ? NS_USE_READ : NS_USE_WRITE, single_owner, budget, out, err);
}

void ns_queue_close(struct ns_queue *queue)
{
    if (!queue)
        return;
    for (int i = 0; i < queue->n_cached; i++)
        sqlite3_finalize(queue->cached[i].stmt);
    int rc = sqlite3_close(queue->db);
    if (rc != SQLITE_OK)
        ns_log(NS_LOG_ERROR, "%s: closing: %s", queue->path, sqlite3_errstr(rc));
    ns_still_close(queue->still);
    ns_budget_give(queue->budget, queue);
}

const char *ns_queue_path(const struct ns_queue *queue)
{
    return queue->path;
}

/* ---- making one ---------------------------------------------------------------------------------------------------------- */

static enum ns_code write_schema(struct ns_queue *q, struct ns_error *err)
{
    char tail[96];
    snprintf(tail, sizeof tail, "PRAGMA application_id=%d; PRAGMA user_version=%d;", NS_APPLICATION_ID,
             NS_SCHEMA_VERSION);
    int rc = sqlite3_exec(q->db, "PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL;",
                          NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return ns_sql_fail(q, rc, "preparing the file", err);
    enum ns_code code = ns_write_begin(q, err);
    if (code != NS_OK)
        return code;
    rc = sqlite3_exec(q->db, (const char *)ns_schema_0001, NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(q->db, tail, NULL, NULL, NULL);
    code = rc == SQLITE_OK ? NS_OK : ns_sql_fail(q, rc, "writing the schema", err);
    if (code == NS_OK)
        code = ns_sql_run(q, err, "INSERT INTO migrations(version, applied_at, tool_version) VALUES (?, ?, ?)", "iit",
                          (int64_t)NS_SCHEMA_VERSION, ns_clock_wall_ms(), NS_VERSION);
    return ns_write_end(q, code, err);
}

enum ns_code ns_queue_scratch(struct ns_budget *budget, struct ns_queue **out, struct ns_error *err)
{
    struct ns_queue *q = NULL;
    enum ns_code rc = open_database("", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, budget, &q, err);
    if (rc == NS_OK)
        rc = write_schema(q, err);
    if (rc != NS_OK) {
        ns_queue_close(q);
        return rc;
    }
    *out = q;
    return NS_OK;
}

static enum ns_code is_taken(const char *path, bool *taken, struct ns_error *err)
{
    struct ns_file *file = NULL;
    *taken = ns_path_exists(path);
    if (!*taken)
        return NS_OK;
    enum ns_code rc = ns_file_open(path, NS_FILE_READ, &file, err);
    if (rc != NS_OK)
        return rc;
    *taken = ns_file_bytes(file) > 0; /* an empty file is as good as none */
    return ns_file_close(file, err);
}

static enum ns_code refuse_taken(const char *path, struct ns_error *err)
{
    bool taken = true;
    enum ns_code rc = is_taken(path, &taken, err);
    return rc == NS_OK && taken ? ns_error_set(err, NS_CANTCREAT, "%s exists already", path) : rc;
}

/* A log that could not be written back is left by the library. */
static void remove_temp(const char *temp)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < NS_COUNT(suffixes); i++) {
        char path[NS_PATH_SIZE];
        struct ns_error err = {0};
        enum ns_code rc = ns_path_format(path, sizeof path, NS_USAGE, &err, "%s%s", temp, suffixes[i]);
        if (rc == NS_OK)
            rc = ns_file_unlink(path, &err);
        if (rc != NS_OK)
            ns_log(NS_LOG_WARN, "a part of a queue that was not made stays: %s", err.message);
    }
}

static enum ns_code create_locked(const char *path, struct ns_error *err)
{
    enum ns_code rc = refuse_taken(path, err); /* once more: somebody may have had the lock before */
    if (rc != NS_OK)
        return rc;
    struct ns_budget budget;
    ns_budget_init(&budget, "a new queue", (size_t)1 << 20);
    char temp[NS_PATH_SIZE];
    struct ns_queue *q = NULL;
    rc = ns_path_format(temp, sizeof temp, NS_USAGE, err, "%s.new-%" PRId64, path, ns_host_pid());
    if (rc != NS_OK)
        return rc;
    rc = ns_file_unlink(temp, err);
    if (rc == NS_OK)
        rc = open_database(temp, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, &budget, &q, err);
    if (rc == NS_OK) {
        rc = write_schema(q, err);
        ns_queue_close(q); /* the last one: checkpoints and removes its log */
    }
    if (rc == NS_OK)
        rc = ns_file_rename(temp, path, err);
    if (rc == NS_OK)
        return NS_OK;
    remove_temp(temp);
    return ns_error_wrap(err, rc == NS_IO ? NS_CANTCREAT : rc, "init %s", path);
}

/* The file appears by a rename, which would replace what another process made in the meantime: so one at a time. A
 * create that fails leaves nothing behind. */
enum ns_code ns_queue_create(const char *path, struct ns_error *err)
{
    char lock_path[NS_PATH_SIZE];
    struct ns_lock *lock = NULL;
    size_t made = 0;
    enum ns_code rc = ns_path_format(lock_path, sizeof lock_path, NS_USAGE, err, "%s.lock", path);
    if (rc == NS_OK)
        rc = refuse_taken(path, err);
    if (rc == NS_OK)
        rc = refuse_to_make(path, err);
    if (rc == NS_OK)
        rc = ns_dir_make_parents(path, &made, err);
    if (rc == NS_OK) {
        rc = ns_lock_take(lock_path, 0, &lock, err);
        rc = rc == NS_BUSY ? NS_CANTCREAT : rc;
    }
    if (rc == NS_OK)
        rc = create_locked(path, err);
    if (rc != NS_OK && lock && !ns_path_exists(path)) {
        ns_lock_remove(lock, lock_path);
        lock = NULL;
    }
    ns_lock_give(lock);
    if (rc != NS_OK)
        ns_dir_remove_parents(path, made);
    return rc;
}
