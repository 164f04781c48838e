/* sys.h - the only room that asks the operating system: files, threads, the I/O pool, the host.
 * Lock order (outermost first): store mutex, iopool mutex. No lock is held across I/O, a callback or a kernel. */
#ifndef NS_SYS_H
#define NS_SYS_H

#include "base/base.h"

/* ---- files (file.c) ------------------------------------------------------------------------------------------- */

struct ns_file; /* an open file; positional calls may come from any thread */

enum ns_file_mode {
    NS_FILE_READ,        /* read only, through the page cache */
    NS_FILE_READ_DIRECT, /* read only, O_DIRECT; NS_CONFIG when the file system refuses */
    NS_FILE_CREATE,      /* read-write, new, must not exist */
    NS_FILE_WRITE        /* read-write, created when missing */
};

/* Errors: NS_NOINPUT (missing), NS_IO with path and errno text. */
NS_MUST_CHECK enum ns_code ns_file_open(const char *path, enum ns_file_mode mode, struct ns_file **out,
                                        struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_file_close(struct ns_file *file, struct ns_error *err); /* NULL is fine */
uint64_t ns_file_bytes(const struct ns_file *file);                                   /* size when opened */
const char *ns_file_path(const struct ns_file *file);
/* Exactly n bytes at offset; EINTR, short and >2 GiB transfers are handled. Reading past the end is NS_IO naming path,
 * offset, length, and how much came. */
NS_MUST_CHECK enum ns_code ns_file_read(struct ns_file *file, void *buffer, size_t n, uint64_t offset,
                                        struct ns_error *err);
/* Like read, but stops at end of file; *got says how much (for aligned windows past the end). */
NS_MUST_CHECK enum ns_code ns_file_read_some(struct ns_file *file, void *buffer, size_t n, uint64_t offset, size_t *got,
                                             struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_file_write(struct ns_file *file, const void *bytes, size_t n, uint64_t offset,
                                         struct ns_error *err);                      /* ENOSPC and EDQUOT are NS_FULL */
NS_MUST_CHECK enum ns_code ns_file_sync(struct ns_file *file, struct ns_error *err); /* a failure is final */
/* Advice to the kernel that [offset, offset+n) will not be read again (buffered mode). */
void ns_file_forget(struct ns_file *file, uint64_t offset, uint64_t n);
/* Size, mtime (ns) and inode now, to notice a file that changed during a run. */
NS_MUST_CHECK enum ns_code ns_file_identity(struct ns_file *file, uint64_t out[3], struct ns_error *err);

/* For tests: the most bytes one system call may move, a multiple of 4096; 0: back to the default. */
void ns_file_limit_transfer(size_t bytes);
/* Modes of NS_FAULT_READ besides an errno (0: EIO): one short transfer, which must not show; a file that ends early. */
#define NS_READ_SHORT (-1)
#define NS_READ_ENDS  (-2)

/* A whole small file into *out (budget-charged, NUL-terminated for convenience). max_bytes is a refusal limit. */
NS_MUST_CHECK enum ns_code ns_file_slurp(const char *path, size_t max_bytes, struct ns_budget *budget, char **out,
                                         size_t *n, struct ns_error *err);
/* temp in the same directory, write, sync, rename, sync of the directory. */
NS_MUST_CHECK enum ns_code ns_file_replace(const char *path, const void *bytes, size_t n, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_file_rename(const char *from, const char *to, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_file_unlink(const char *path, struct ns_error *err); /* a missing file is fine */
NS_MUST_CHECK enum ns_code ns_dir_make(const char *path, struct ns_error *err);    /* existing is fine */
NS_MUST_CHECK enum ns_code ns_dir_sync(const char *path, struct ns_error *err);
/* Calls each for every plain entry, sorted by name; each may stop the walk by returning an error. */
typedef enum ns_code (*ns_dir_each_fn)(void *arg, const char *name, uint64_t bytes, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_dir_each(const char *path, ns_dir_each_fn each, void *arg, struct ns_error *err);
bool ns_path_exists(const char *path);
bool ns_path_is_link(const char *path); /* itself; a link among its folders does not count */
/* A path built into out. code with its length and the limit when it does not fit; out then holds its beginning. */
NS_MUST_CHECK enum ns_code ns_path_format(char *out, size_t size, enum ns_code code, struct ns_error *err,
                                          const char *fmt, ...) NS_PRINTF(5, 6);
/* The same refusal for a path of n bytes that was built elsewhere; size counts the byte behind it. */
enum ns_code ns_path_refuse(enum ns_code code, const char *path, size_t n, size_t size, struct ns_error *err);
bool ns_path_may_write(const char *path); /* may this process? A folder: make files in it */
bool ns_path_is_stream(const char *path); /* a pipe, socket or device: readable once, from front to back */
/* Makes the directories that path lies in, as far as they are missing. *made: how many bytes of path name the first one
 * that was made, 0 for none; set on error too, for ns_dir_remove_parents, which takes those away again that are empty. */
NS_MUST_CHECK enum ns_code ns_dir_make_parents(const char *path, size_t *made, struct ns_error *err);
void ns_dir_remove_parents(const char *path, size_t made);
bool ns_path_same(const char *a, const char *b); /* same file by device and inode: links of every kind */
NS_MUST_CHECK enum ns_code ns_path_real(const char *path, char out[4096], struct ns_error *err);

/* A buffered reader of lines without a length limit but the given one (a file, or - for standard input), and a
 * streaming writer to a temporary that becomes the path on commit. */
struct ns_line_reader;
NS_MUST_CHECK enum ns_code ns_lines_open(const char *path, size_t max_line, struct ns_budget *budget,
                                         struct ns_line_reader **out, struct ns_error *err);
/* *line is borrowed until the next call, without its newline, NUL-terminated; *line = NULL at the end. A longer line
 * is cut and *cut set; the reader goes on with the next one. */
NS_MUST_CHECK enum ns_code ns_lines_next(struct ns_line_reader *r, const char **line, size_t *n, bool *cut,
                                         struct ns_error *err);
void ns_lines_close(struct ns_line_reader *r);
struct ns_out_file; /* "-" writes to standard output */
NS_MUST_CHECK enum ns_code ns_out_open(const char *path, struct ns_out_file **out, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_out_write(struct ns_out_file *f, const void *bytes, size_t n, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_out_commit(struct ns_out_file *f, struct ns_error *err); /* frees; sync and rename */
void ns_out_abort(struct ns_out_file *f);                                              /* frees; nothing is left */

/* One-byte open-file-description lock in path (created when missing). NS_BUSY when another process holds it. The lock
 * lives until unlock or process death. ns_lock_remove takes the file away first: for a holder who knows that nobody has
 * reason to lock another byte of it. */
struct ns_lock;
NS_MUST_CHECK enum ns_code ns_lock_take(const char *path, uint64_t byte, struct ns_lock **out, struct ns_error *err);
void ns_lock_give(struct ns_lock *lock);
void ns_lock_remove(struct ns_lock *lock, const char *path);

/* "I use this file, and at most so much memory": a shared mark that dies with the process, seen by every alias of the
 * file. Reading permission is enough. */
struct ns_presence;
NS_MUST_CHECK enum ns_code ns_presence_take(const char *path, uint64_t promised_bytes, struct ns_presence **out,
                                            struct ns_error *err);
void ns_presence_give(struct ns_presence *presence);
/* Calls each for every mark that is not of the calling process's own descriptor. promised_bytes in whole MiB. */
typedef void (*ns_presence_each_fn)(void *arg, int64_t pid, uint64_t promised_bytes);
NS_MUST_CHECK enum ns_code ns_presence_each(const char *path, ns_presence_each_fn each, void *arg,
                                            struct ns_error *err);

/* ---- threads (thread.c) ---------------------------------------------------------------------------------------- */

struct ns_mutex;
struct ns_cond;
struct ns_thread;
struct ns_mutex *ns_mutex_open(void);
void ns_mutex_close(struct ns_mutex *mutex);
void ns_mutex_lock(struct ns_mutex *mutex);
void ns_mutex_unlock(struct ns_mutex *mutex);
struct ns_cond *ns_cond_open(void);
void ns_cond_close(struct ns_cond *cond);
void ns_cond_wait(struct ns_cond *cond, struct ns_mutex *mutex);
bool ns_cond_wait_ms(struct ns_cond *cond, struct ns_mutex *mutex, uint64_t timeout_ms); /* false: timed out */
void ns_cond_signal(struct ns_cond *cond);
void ns_cond_broadcast(struct ns_cond *cond);
NS_MUST_CHECK enum ns_code ns_thread_start(void (*run)(void *arg), void *arg, struct ns_thread **out,
                                           struct ns_error *err);
void ns_thread_join(struct ns_thread *thread);
void ns_sleep_ms(uint64_t ms); /* a signal ends it early */

/* ---- the I/O pool (iopool.c) ----------------------------------------------------------------------------------- */

/* Positional reads (and writes, in their own class so that they cannot occupy every reader) by a few threads. */
struct ns_iopool;

struct ns_io { /* caller-owned, alive until done */
    struct ns_file *file;
    void *buffer;
    size_t n;
    uint64_t offset;
    bool is_write;
    bool urgent;  /* before those that are not */
    bool may_end; /* a short read at end of file is fine; got tells */
    /* results, valid after ns_io_wait */
    enum ns_code code;
    struct ns_error err;
    size_t got;
    uint64_t busy_ns; /* time in the system call */
    /* private */
    struct ns_io *next;
    int state;
};
NS_MUST_CHECK enum ns_code ns_iopool_open(unsigned n_readers, struct ns_iopool **out, struct ns_error *err);
void ns_iopool_close(struct ns_iopool *pool); /* waits for what was started */
void ns_io_start(struct ns_iopool *pool, struct ns_io *io);
/* Blocks until io is done; returns its code and copies its error. */
NS_MUST_CHECK enum ns_code ns_io_wait(struct ns_iopool *pool, struct ns_io *io, struct ns_error *err);
bool ns_io_done(struct ns_iopool *pool, struct ns_io *io);
/* Takes a request that has not begun out of the queue (true), else waits for it (false). */
bool ns_io_cancel(struct ns_iopool *pool, struct ns_io *io);

struct ns_iopool_stats { /* since open, reads only */
    uint64_t reads, read_bytes;
    uint64_t read_ns; /* sum over readers of time in reads */
    uint64_t disk_ns; /* time in which at least one read was under way */
};

void ns_iopool_stats_get(struct ns_iopool *pool, struct ns_iopool_stats *out);

/* ---- memory in bulk (bulk.c) ------------------------------------------------------------------------------------ */

/* As ns_budget_take_raw, page-aligned, for blocks that are used whole: large pages where the kernel has them. Never more
 * memory than bytes, a small page for the block's head and what rounds to small pages. ns_budget_give gives it back. */
void *ns_bulk_take(struct ns_budget *budget, size_t bytes, struct ns_error *err);

/* Memory in one piece that grows and shrinks at its end and never moves, in large pages wherever they lie wholly inside
 * it. The budget is charged what it is, not what it may become. All 0: it was never opened. Threads: one at a time. */
struct ns_span {
    struct ns_budget *budget; /* borrowed */
    uint8_t *base;            /* 2 MiB-aligned */
    size_t bytes;             /* what may be used */
    size_t most;
    void *reserved; /* private: addresses for it */
    size_t reserved_bytes;
};
/* Errors: NS_BUDGET when there are no addresses for most bytes. */
NS_MUST_CHECK enum ns_code ns_span_open(struct ns_span *span, struct ns_budget *budget, size_t most,
                                        struct ns_error *err);
/* To bytes, rounded up to pages; no smaller, and no larger, than it is. What stays keeps its content, what comes is not present
 * before its first use, what goes is the system's at once. Errors of grow: NS_BUDGET, and nothing changes. */
NS_MUST_CHECK enum ns_code ns_span_grow(struct ns_span *span, size_t bytes, struct ns_error *err);
void ns_span_shrink(struct ns_span *span, size_t bytes);
void ns_span_close(struct ns_span *span);

struct ns_bulk {
    void *block; /* from ns_bulk_take, or whole pages of a span */
    size_t bytes;
};

/* Makes blocks present in their order, in the background: what is not there yet when it is used becomes so then. The blocks
 * may be used meanwhile, and live until the end. NULL when there is no memory for it: nothing is lost but time. */
struct ns_prefill;
struct ns_prefill *ns_prefill_start(struct ns_budget *budget, const struct ns_bulk *part, size_t n);
/* Waits until all are, or the time is over: then false, and what is left is done with the lowest priority. After a signal
 * to stop (ns_signal_count) nothing more is made present, and nobody waits. */
bool ns_prefill_wait(struct ns_prefill *prefill, uint64_t timeout_ms);
bool ns_prefill_has(const struct ns_prefill *prefill, size_t i); /* is part i present? */
void ns_prefill_end(struct ns_prefill *prefill);                 /* stops soon, and waits; NULL is fine */

/* ---- the machine (cpu.c, host.c) ------------------------------------------------------------------------------- */

uint32_t ns_cpu_bits(void);                 /* ns_cpu_bit of this processor, with OS support checked */
unsigned ns_cpu_quota_at(const char *root); /* cores the control groups allow, UINT_MAX: all; root as below */
unsigned ns_cpu_physical(void);   /* physical cores this process may use (affinity and cgroup quota respected) */
size_t ns_host_free_memory(void); /* what machine and control groups (v1, v2, nested) really leave free */
size_t ns_host_free_memory_at(const char *root); /* the same, root in front of /proc and /sys (tests) */
size_t ns_host_peak_rss(void);                   /* VmHWM */
size_t ns_host_rss(void);
size_t ns_host_rss_of(int64_t pid); /* 0 when it is gone */
uint64_t ns_host_free_disk(const char *path);
const char *ns_host_name(void); /* static storage, filled once at start by ns_host_init */
const char *ns_host_boot_id(void);
void ns_host_init(void); /* call once from main before threads */
/* Call first of all: a standard stream that the caller closed is filled with one whose use fails, so that no file of ours
 * gets its number and no answer lands in it. */
void ns_host_fill_streams(void);
int64_t ns_host_pid(void);
int64_t ns_host_uid(void);
const char *ns_host_user(void);
/* Start time of a process in clock ticks since boot, or -1 when there is none; with ns_host_pid it names a process. */
int64_t ns_host_pid_start(int64_t pid);
bool ns_host_pid_stopped(int64_t pid); /* stopped by a signal */
/* Does the process still live that called itself so? Host, boot and start time must agree: a number that now belongs to
 * another process is not taken for it. */
bool ns_host_is_alive(const char *host, const char *boot_id, int64_t pid, int64_t start);
/* Both reach the process that pid and start name through a pid file descriptor, and no other; one that is gone is fine.
 * Asking sends TERM; killing waits for the end. */
NS_MUST_CHECK enum ns_code ns_host_ask_to_stop(int64_t pid, int64_t start, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_host_kill(int64_t pid, int64_t start, uint64_t wait_ms, struct ns_error *err);
bool ns_host_is_network_fs(const char *path, char name[32]); /* NFS, SMB, FUSE, Lustre, GPFS, 9p */
void ns_host_pretend_network_fs(
    const char *name); /* tests: everything lies on it; static text, NULL: the truth again */
/* SIGTERM, SIGINT, SIGHUP counted into a flag; SIGPIPE ignored. */
void ns_signal_install(void);
unsigned ns_signal_count(void); /* 0 none, 1 stop politely, 2 abandon */
int ns_signal_last(void);
void ns_signal_reset(void);
bool ns_signal_take_usr1(void); /* true once per SIGUSR1 */
/* From now on a crash of this process (abort, segmentation fault ...) leaves path non-empty; it is made empty first. A
 * SIGKILL leaves it empty. One mark per process. */
NS_MUST_CHECK enum ns_code ns_crash_mark_open(const char *path, struct ns_error *err);
void ns_crash_mark_close(void); /* the file stays */

#endif
