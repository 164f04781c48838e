/* network_fs.c - preloaded into the program by a test: what lies under $NETWORK_DIR is on NFS, as statfs tells it. The
 * program itself has no switch for it. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

int statfs(const char *path, struct statfs *out)
{
    long rc = syscall(SYS_statfs, path, out);
    const char *dir = getenv("NETWORK_DIR");
    char real[PATH_MAX];
    if (rc == 0 && dir && realpath(path, real) && strncmp(real, dir, strlen(dir)) == 0)
        out->f_type = 0x6969;
    return (int)rc;
}
