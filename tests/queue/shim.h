/* shim.h - a file system layer between SQLite and the real one that fails on demand, and that can lose what was not
 * synced, as a power cut does. For tests. */
#ifndef NS_TESTS_SHIM_H
#define NS_TESTS_SHIM_H

#include <stdbool.h>
#include <stdint.h>

enum shim_call { SHIM_WRITE, SHIM_SYNC, SHIM_TRUNCATE, SHIM_SHM_MAP, SHIM_OPEN, SHIM_DELETE, SHIM_CALLS };

enum shim_fault { SHIM_IO, SHIM_FULL, SHIM_SHORT };

void shim_install(void);                                                              /* becomes the default layer */
void shim_arm(enum shim_call call, uint64_t nth, enum shim_fault fault, bool sticky); /* nth 0: nothing fails */
bool shim_was_hit(void);
/* At the nth sync from now (before it takes effect) every write that was not synced is kept, dropped or garbled, sector
 * by sector, by the seed; then the process ends at once with status 99. Syncs and writes of sys/ count as well in a test that is
 * linked with --wrap for pwrite, fdatasync, fsync and rename. */
void shim_cut_power(uint64_t nth_sync, uint64_t seed);
uint64_t shim_syncs(void); /* since install */

#endif
