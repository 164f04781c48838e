/* arena.c - scratch of a pass: one block, handed out from the bottom. Everything that a layer needs is taken in one
 * order and given back together by setting `used` to a mark. */
#include "model/model.h"

#include <assert.h>

void *ns_arena_take(struct ns_arena *arena, size_t bytes)
{
    size_t start = arena->used;
    arena->used += (bytes + 63) & ~(size_t)63;
    if (arena->used > arena->peak)
        arena->peak = arena->used;
    if (!arena->base)
        return NULL;
    assert(arena->used <= arena->limit);
    return arena->base + start;
}
