/* sys_impl.h - private to sys/: errno as text, small kernel files. */
#ifndef NS_SYS_IMPL_H
#define NS_SYS_IMPL_H

#include "sys/sys.h"

/* "what path: text (errno n)". Returns code. */
enum ns_code ns_sys_fail(struct ns_error *err, enum ns_code code, const char *what, const char *path, int errnum);
const char *ns_sys_errno_text(int errnum, char *buffer, size_t size);
/* NS_FULL when the device or the quota is full, else otherwise. */
enum ns_code ns_sys_write_code(int errnum, enum ns_code otherwise);
/* A whole small kernel file (/proc, /sys) into out, NUL-terminated. False when it cannot be read or does not fit. */
bool ns_sys_read_text(const char *path, char *out, size_t size);
char *ns_sys_copy_text(const char *s); /* ns_heap_free it; NULL when out of memory */
/* write(2) until all is written; the site of NS_FAULT_WRITE. offset < 0: at the file position. Returns an errno or 0. */
int ns_sys_write_all(int fd, const void *bytes, size_t n, int64_t offset);
/* Waits until the descriptor is ready for events (POLLIN, POLLOUT), as files always are. False: a signal asks for the end. */
bool ns_sys_wait_for(int fd, short events);
int ns_sys_sync(int fd); /* fdatasync, the site of NS_FAULT_SYNC. Returns an errno or 0. */

/* Calls each for every group of this process under the controller, innermost first, with its directory; v2 when
 * is_v2. root goes in front of /proc and /sys. */
typedef void (*ns_group_each_fn)(void *arg, const char *dir, bool is_v2);
void ns_sys_groups(const char *root, const char *controller, ns_group_each_fn each, void *arg);

#endif
