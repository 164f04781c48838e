/* shim.c - see shim.h. Every file object carries the real one behind it. The list of unsynced writes keeps what was there
 * before each, so that a cut can undo any of them. */
#include "../random.h"
#include "shim.h"

#include <assert.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct shim_file {
    sqlite3_file base;
    sqlite3_io_methods methods;
    sqlite3_file *real;
    const char *name; /* valid until closed; NULL for a temporary */
    bool is_durable;  /* database or log: worth losing */
};

struct unsynced {
    struct unsynced *next;
    struct shim_file *file;
    sqlite3_int64 offset, old_size;
    int n, n_old;
    unsigned char *old;
};

static sqlite3_vfs layer, *real_layer;

static struct {
    enum shim_call call;
    enum shim_fault fault;
    uint64_t left, visits, cut_left, seed, syncs;
    bool sticky, hit;
    struct unsynced *writes; /* newest first */
} shim;

static bool fails(enum shim_call call)
{
    if (shim.left == 0 || shim.call != call)
        return false;
    if (shim.left > 1) {
        shim.left--;
        return false;
    }
    if (!shim.sticky)
        shim.left = 0;
    shim.hit = true;
    return true;
}

static struct shim_file *of(sqlite3_file *f)
{
    return (struct shim_file *)(void *)f;
}

/* ---- power --------------------------------------------------------------------------------------------------------------- */

static void remember(struct shim_file *f, sqlite3_int64 offset, int n)
{
    if (!f->is_durable || shim.cut_left == 0)
        return;
    struct unsynced *u = calloc(1, sizeof *u);
    assert(u);
    u->file = f;
    u->offset = offset;
    u->n = n;
    f->real->pMethods->xFileSize(f->real, &u->old_size);
    u->n_old = u->old_size <= offset ? 0 : u->old_size - offset < n ? (int)(u->old_size - offset) : n;
    u->old = calloc(1, (size_t)n + 1);
    assert(u->old);
    if (u->n_old > 0)
        f->real->pMethods->xRead(f->real, u->old, u->n_old, offset);
    u->next = shim.writes;
    shim.writes = u;
}

/* Durable now: what any handle of the same file wrote. */
static void forget(const struct shim_file *f)
{
    for (struct unsynced **at = &shim.writes; *at;) {
        struct unsynced *u = *at;
        if (u->file != f && !(f->name && u->file->name && strcmp(f->name, u->file->name) == 0)) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        free(u->old);
        free(u);
    }
}

static void cut_side_files(int sector);

static void cut(void)
{
    int sector = test_random(&shim.seed) % 2 ? 512 : 4096;
    cut_side_files(sector);
    for (struct unsynced *u = shim.writes; u; u = u->next)
        for (int at = 0; at < u->n; at += sector) {
            int n = u->n - at < sector ? u->n - at : sector;
            uint64_t fate = test_random(&shim.seed) % 4; /* kept, kept, dropped, garbled */
            if (fate < 2)
                continue;
            if (fate == 3)
                for (int i = 0; i < n; i++)
                    u->old[at + i] = (unsigned char)test_random(&shim.seed);
            u->file->real->pMethods->xWrite(u->file->real, u->old + at, n, u->offset + at);
        }
    _exit(99);
}

/* ---- side files: the calls of sys/, which a test that wants them lost wraps at link time -------------------------------- */

ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);
int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

/* An unsynced write (name[0] NULL) or an unsynced rename. */
struct unsynced_side {
    struct unsynced_side *next;
    int fd; /* a duplicate */
    dev_t dev;
    ino_t ino;
    off_t offset, old_size;
    size_t n;
    char *name[2];
};

static struct unsynced_side *sides;

static struct unsynced_side *add_side(void)
{
    struct unsynced_side *u = calloc(1, sizeof *u);
    if (!u)
        _exit(98);
    u->fd = -1;
    u->next = sides;
    sides = u;
    return u;
}

static void drop_side(struct unsynced_side **at)
{
    struct unsynced_side *u = *at;
    *at = u->next;
    if (u->fd >= 0)
        close(u->fd);
    free(u->name[0]);
    free(u->name[1]);
    free(u);
}

ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
    struct stat st;
    if (shim.cut_left > 0 && fstat(fd, &st) == 0) {
        struct unsynced_side *u = add_side();
        u->fd = dup(fd);
        u->dev = st.st_dev;
        u->ino = st.st_ino;
        u->old_size = st.st_size;
        u->offset = at;
        u->n = n;
    }
    return __real_pwrite(fd, p, n, at);
}

/* A folder that is synced keeps its names, a file its bytes. */
static void sync_side(int fd)
{
    struct stat st;
    if (shim.cut_left == 0 || fstat(fd, &st) != 0)
        return;
    shim.syncs++;
    if (--shim.cut_left == 0)
        cut();
    for (struct unsynced_side **at = &sides; *at;)
        if ((*at)->name[0] ? S_ISDIR(st.st_mode) : (*at)->dev == st.st_dev && (*at)->ino == st.st_ino)
            drop_side(at);
        else
            at = &(*at)->next;
}

int __wrap_fdatasync(int fd)
{
    sync_side(fd);
    return __real_fdatasync(fd);
}

int __wrap_fsync(int fd)
{
    sync_side(fd);
    return __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    if (shim.cut_left > 0 && access(to, F_OK) != 0) { /* one that replaces something stays: the old one is gone */
        struct unsynced_side *u = add_side();
        u->name[0] = strdup(from);
        u->name[1] = strdup(to);
    }
    return __real_rename(from, to);
}

/* Bytes are kept, zeroed or garbled; a file may also have its old size again, and a name be what it was. */
static void cut_side_files(int sector)
{
    for (struct unsynced_side *u = sides; u; u = u->next) {
        if (u->name[0]) {
            if (test_random(&shim.seed) % 2)
                __real_rename(u->name[1], u->name[0]);
            continue;
        }
        for (size_t at = 0; at < u->n; at += (size_t)sector) {
            unsigned char bytes[4096] = {0};
            size_t n = u->n - at < (size_t)sector ? u->n - at : (size_t)sector;
            uint64_t fate = test_random(&shim.seed) % 4;
            for (size_t i = 0; fate == 3 && i < n; i++)
                bytes[i] = (unsigned char)test_random(&shim.seed);
            if (fate >= 2 && __real_pwrite(u->fd, bytes, n, u->offset + (off_t)at) != (ssize_t)n)
                _exit(98);
        }
        if (test_random(&shim.seed) % 3 == 0 && ftruncate(u->fd, u->old_size) != 0)
            _exit(98);
    }
}

/* ---- files ----------------------------------------------------------------------------------------------------------------- */

static int file_close(sqlite3_file *f)
{
    forget(of(f)); /* its object goes: what it wrote cannot be undone any more */
    return of(f)->real->pMethods ? of(f)->real->pMethods->xClose(of(f)->real) : SQLITE_OK;
}

static int file_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    return of(f)->real->pMethods->xRead(of(f)->real, p, n, at);
}

static int file_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    sqlite3_file *real = of(f)->real;
    if (fails(SHIM_WRITE)) {
        if (shim.fault == SHIM_SHORT)
            real->pMethods->xWrite(real, p, n / 2, at);
        return shim.fault == SHIM_FULL ? SQLITE_FULL : SQLITE_IOERR_WRITE;
    }
    remember(of(f), at, n);
    return real->pMethods->xWrite(real, p, n, at);
}

static int file_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    if (fails(SHIM_TRUNCATE))
        return SQLITE_IOERR_TRUNCATE;
    return of(f)->real->pMethods->xTruncate(of(f)->real, n);
}

static int file_sync(sqlite3_file *f, int flags)
{
    if (fails(SHIM_SYNC))
        return shim.fault == SHIM_FULL ? SQLITE_FULL : SQLITE_IOERR_FSYNC;
    if (of(f)->is_durable) {
        shim.syncs++;
        if (shim.cut_left > 0 && --shim.cut_left == 0)
            cut();
        forget(of(f));
    }
    return of(f)->real->pMethods->xSync(of(f)->real, flags);
}

static int file_size(sqlite3_file *f, sqlite3_int64 *n)
{
    return of(f)->real->pMethods->xFileSize(of(f)->real, n);
}

static int file_lock(sqlite3_file *f, int kind)
{
    return of(f)->real->pMethods->xLock(of(f)->real, kind);
}

static int file_unlock(sqlite3_file *f, int kind)
{
    return of(f)->real->pMethods->xUnlock(of(f)->real, kind);
}

static int file_check_lock(sqlite3_file *f, int *out)
{
    return of(f)->real->pMethods->xCheckReservedLock(of(f)->real, out);
}

static int file_control(sqlite3_file *f, int op, void *arg)
{
    return of(f)->real->pMethods->xFileControl(of(f)->real, op, arg);
}

static int file_sector(sqlite3_file *f)
{
    return of(f)->real->pMethods->xSectorSize(of(f)->real);
}

static int file_traits(sqlite3_file *f)
{
    return of(f)->real->pMethods->xDeviceCharacteristics(of(f)->real) & ~SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static int file_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **out)
{
    if (fails(SHIM_SHM_MAP))
        return SQLITE_IOERR_SHMMAP;
    return of(f)->real->pMethods->xShmMap(of(f)->real, page, size, extend, out);
}

static int file_shm_lock(sqlite3_file *f, int offset, int n, int flags)
{
    return of(f)->real->pMethods->xShmLock(of(f)->real, offset, n, flags);
}

static void file_shm_barrier(sqlite3_file *f)
{
    of(f)->real->pMethods->xShmBarrier(of(f)->real);
}

static int file_shm_unmap(sqlite3_file *f, int remove)
{
    return of(f)->real->pMethods->xShmUnmap(of(f)->real, remove);
}

/* ---- the layer ---------------------------------------------------------------------------------------------------------------- */

static int layer_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out_flags)
{
    (void)v;
    struct shim_file *s = of(f);
    memset(s, 0, sizeof *s);
    s->real = (sqlite3_file *)(void *)(s + 1);
    if (fails(SHIM_OPEN))
        return SQLITE_CANTOPEN;
    int rc = real_layer->xOpen(real_layer, name, s->real, flags, out_flags);
    if (rc != SQLITE_OK)
        return rc;
    s->name = name;
    s->is_durable = (flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL)) != 0;
    s->methods =
        (sqlite3_io_methods){2,           file_close,   file_read,     file_write,       file_truncate,  file_sync,
                             file_size,   file_lock,    file_unlock,   file_check_lock,  file_control,   file_sector,
                             file_traits, file_shm_map, file_shm_lock, file_shm_barrier, file_shm_unmap, NULL,
                             NULL};
    s->base.pMethods = &s->methods;
    return SQLITE_OK;
}

static int layer_delete(sqlite3_vfs *v, const char *name, int sync_dir)
{
    (void)v;
    if (fails(SHIM_DELETE))
        return SQLITE_IOERR_DELETE;
    return real_layer->xDelete(real_layer, name, sync_dir);
}

void shim_install(void)
{
    real_layer = sqlite3_vfs_find(NULL);
    assert(real_layer);
    layer = *real_layer;
    layer.zName = "shim";
    layer.szOsFile = (int)sizeof(struct shim_file) + real_layer->szOsFile;
    layer.xOpen = layer_open;
    layer.xDelete = layer_delete;
    int rc = sqlite3_vfs_register(&layer, 1);
    assert(rc == SQLITE_OK);
    (void)rc;
}

void shim_arm(enum shim_call call, uint64_t nth, enum shim_fault fault, bool sticky)
{
    shim.call = call;
    shim.left = nth;
    shim.fault = fault;
    shim.sticky = sticky;
    shim.hit = false;
}

bool shim_was_hit(void)
{
    return shim.hit;
}

void shim_cut_power(uint64_t nth_sync, uint64_t seed)
{
    shim.cut_left = nth_sync;
    shim.seed = seed;
}

uint64_t shim_syncs(void)
{
    return shim.syncs;
}
