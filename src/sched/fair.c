/* fair.c - the order in which waiting items begin.
 *
 * WHAT   Waiting items stand in queues, one for each (batch, priority). ns_fair_next takes the next one in fair order:
 *        the best class first; among the batches of a class deficit round robin in tokens; and every 8th place goes to
 *        the oldest of all, whatever its class. Age raises an item by one class for each 24 hours, never above 1.
 *        Taken items stand in the window, in that order. A wave is filled from the first look_ahead of them, in the order
 *        that group.c prefers.
 * WHY    Choosing who rides together needs freedom to reorder, fairness needs a bound on it. The window is the freedom,
 *        the count of those that went first is the bound: an item that was passed overtake_most times goes next, or
 *        nobody does.
 * INVARIANTS
 *   1. An item is overtaken by at most overtake_most items that stood behind it in the window and took rows that it could
 *      have had. (Not counted: identical items, which take none; a better class; and while it waits for memory, items that
 *      need none.)                                               (fair_test: nobody_is_overtaken_more_often)
 *   2. A batch gets its share of tokens among the batches of its class.    (fair_test: batches_share_tokens)
 *   3. The oldest item begins after a bounded number of places.            (fair_test: low_priority_does_not_starve) */
#include "sched/sched_impl.h"

#include <assert.h>
#include <string.h>

enum { CLASSES = NS_FAIR_CLASSES, DAY_MS = 24 * 60 * 60 * 1000, FIRST_BUCKETS = 64 };

void ns_list_init(struct ns_item_list *list)
{
    *list = (struct ns_item_list){.first = NS_NIL, .last = NS_NIL};
}

void ns_list_add(struct ns_sched *s, struct ns_item_list *list, uint32_t item)
{
    s->item[item].list_next = NS_NIL;
    s->item[item].list_prev = list->last;
    if (list->last != NS_NIL)
        s->item[list->last].list_next = item;
    else
        list->first = item;
    list->last = item;
    list->n++;
}

void ns_list_push(struct ns_sched *s, struct ns_item_list *list, uint32_t item)
{
    s->item[item].list_prev = NS_NIL;
    s->item[item].list_next = list->first;
    if (list->first != NS_NIL)
        s->item[list->first].list_prev = item;
    else
        list->last = item;
    list->first = item;
    list->n++;
}

void ns_list_remove(struct ns_sched *s, struct ns_item_list *list, uint32_t item)
{
    struct ns_sched_entry *it = &s->item[item];
    if (it->list_prev != NS_NIL)
        s->item[it->list_prev].list_next = it->list_next;
    else
        list->first = it->list_next;
    if (it->list_next != NS_NIL)
        s->item[it->list_next].list_prev = it->list_prev;
    else
        list->last = it->list_prev;
    list->n--;
}

/* Behind the last one that is as old: queues stand by age. */
static void list_add_by_age(struct ns_sched *s, struct ns_item_list *list, uint32_t item)
{
    uint32_t after = list->last;
    while (after != NS_NIL && s->item[after].enqueued_ms > s->item[item].enqueued_ms)
        after = s->item[after].list_prev;
    if (after == list->last) {
        ns_list_add(s, list, item);
    } else if (after == NS_NIL) {
        ns_list_push(s, list, item);
    } else {
        uint32_t next = s->item[after].list_next;
        s->item[item].list_prev = after;
        s->item[item].list_next = next;
        s->item[after].list_next = s->item[next].list_prev = item;
        list->n++;
    }
}

/* ---- queues ------------------------------------------------------------------------------------------------------------ */

static uint32_t class_of(const struct ns_sched_entry *it, int64_t now_ms)
{
    int64_t days = now_ms > it->enqueued_ms ? (now_ms - it->enqueued_ms) / DAY_MS : 0;
    if (it->priority <= 1)
        return it->priority;
    return days >= it->priority - 1 ? 1 : it->priority - (uint32_t)days;
}

static uint32_t bucket_of(const struct ns_fair *f, uint64_t batch, uint32_t priority)
{
    uint64_t h = (batch * 16 + priority) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 40) & (f->n_buckets - 1);
}

static void rehash(struct ns_sched *s)
{
    struct ns_fair *f = &s->fair;
    uint32_t more = f->n_buckets * 4;
    uint32_t *bucket = ns_budget_take_raw(s->budget, (size_t)more * sizeof *bucket, 64, NULL);
    if (!bucket)
        return; /* the chains get longer, nothing else */
    ns_budget_give(s->budget, f->bucket);
    f->bucket = bucket;
    f->n_buckets = more;
    memset(bucket, 0xff, (size_t)more * sizeof *bucket);
    for (uint32_t q = 0; q < f->n_queues; q++) {
        uint32_t *at = &bucket[bucket_of(f, f->queue[q].batch, f->queue[q].priority)];
        f->queue[q].hash_next = *at;
        *at = q;
    }
}

/* Queues live as long as the scheduler: a batch that comes back finds its own. */
static enum ns_code queue_get(struct ns_sched *s, uint64_t batch, uint32_t priority, uint32_t *out,
                              struct ns_error *err)
{
    struct ns_fair *f = &s->fair;
    for (uint32_t q = f->bucket[bucket_of(f, batch, priority)]; q != NS_NIL; q = f->queue[q].hash_next)
        if (f->queue[q].batch == batch && f->queue[q].priority == priority) {
            *out = q;
            return NS_OK;
        }
    void *array = f->queue;
    enum ns_code rc =
        ns_sched_reserve(s->budget, &array, &f->queue_capacity, (size_t)f->n_queues + 1, sizeof *f->queue, err);
    f->queue = array;
    if (rc != NS_OK)
        return rc;
    if (f->n_queues >= f->n_buckets)
        rehash(s);
    uint32_t q = f->n_queues++, *bucket = &f->bucket[bucket_of(f, batch, priority)];
    f->queue[q] = (struct ns_fair_queue){
        .batch = batch, .priority = priority, .ring = NS_NIL, .next = NS_NIL, .prev = NS_NIL, .hash_next = *bucket};
    ns_list_init(&f->queue[q].items);
    *bucket = q;
    *out = q;
    return NS_OK;
}

/* The rings: queues with items, by the class of their first item. */
static void ring_remove(struct ns_fair *f, uint32_t q)
{
    struct ns_fair_queue *queue = &f->queue[q];
    if (queue->ring == NS_NIL)
        return;
    if (queue->next == q) {
        f->ring[queue->ring] = NS_NIL;
    } else {
        f->queue[queue->prev].next = queue->next;
        f->queue[queue->next].prev = queue->prev;
        if (f->ring[queue->ring] == q)
            f->ring[queue->ring] = queue->next;
    }
    queue->ring = NS_NIL;
}

static void ring_add(struct ns_fair *f, uint32_t q, uint32_t class)
{
    struct ns_fair_queue *queue = &f->queue[q];
    uint32_t first = f->ring[class];
    queue->ring = class;
    queue->topped = false;
    if (first == NS_NIL) {
        queue->next = queue->prev = q;
        f->ring[class] = q;
        return;
    }
    queue->next = first;
    queue->prev = f->queue[first].prev;
    f->queue[queue->prev].next = q;
    f->queue[first].prev = q;
}

static void ring_update(struct ns_sched *s, uint32_t q)
{
    struct ns_fair *f = &s->fair;
    struct ns_fair_queue *queue = &f->queue[q];
    if (queue->items.n == 0) {
        ring_remove(f, q);
        queue->deficit = 0; /* nothing is saved up while nobody waits */
        return;
    }
    uint32_t class = class_of(&s->item[queue->items.first], f->now_ms);
    if (class == queue->ring)
        return;
    ring_remove(f, q);
    ring_add(f, q, class);
}

static uint32_t best_class(const struct ns_fair *f)
{
    uint32_t class = 0;
    while (class < CLASSES && f->ring[class] == NS_NIL)
        class ++;
    return class;
}

static uint32_t take_from(struct ns_sched *s, uint32_t q)
{
    struct ns_fair_queue *queue = &s->fair.queue[q];
    uint32_t item = queue->items.first;
    ns_list_remove(s, &queue->items, item);
    ring_update(s, q);
    return item;
}

/* Deficit round robin: the queue in front is topped up once, serves what it can pay for, and goes to the back. */
static uint32_t take_in_turn(struct ns_sched *s, uint32_t class)
{
    struct ns_fair *f = &s->fair;
    for (;;) {
        uint32_t q = f->ring[class];
        struct ns_fair_queue *queue = &f->queue[q];
        if (queue->next == q)
            return take_from(s, q); /* nobody to share with */
        const struct ns_sched_entry *it = &s->item[queue->items.first];
        int64_t cost = (int64_t)it->n + it->left;
        if (!queue->topped) {
            queue->deficit += s->options.quantum;
            queue->topped = true;
        }
        if (queue->deficit >= cost) {
            queue->deficit -= cost;
            return take_from(s, q);
        }
        queue->topped = false;
        f->ring[class] = queue->next;
    }
}

static uint32_t take_oldest(struct ns_sched *s)
{
    struct ns_fair *f = &s->fair;
    uint32_t oldest = NS_NIL;
    for (uint32_t q = 0; q < f->n_queues; q++) {
        uint32_t item = f->queue[q].items.first;
        if (item == NS_NIL)
            continue;
        const struct ns_sched_entry *a = &s->item[item], *b = oldest == NS_NIL ? NULL : &s->item[oldest];
        if (!b || a->enqueued_ms < b->enqueued_ms || (a->enqueued_ms == b->enqueued_ms && a->order < b->order))
            oldest = item;
    }
    return take_from(s, s->item[oldest].queue);
}

/* ---- the window -------------------------------------------------------------------------------------------------------- */

static enum ns_code window_insert(struct ns_sched *s, struct ns_error *err)
{
    struct ns_fair *f = &s->fair;
    void *array = f->window;
    enum ns_code rc = ns_sched_reserve(s->budget, &array, &f->window_capacity, f->n_window + 1, sizeof *f->window, err);
    f->window = array;
    if (rc != NS_OK)
        return rc;
    uint32_t class = best_class(f);
    f->taken++;
    bool reserved = s->options.reserved_in != UINT32_MAX && f->taken % s->options.reserved_in == 0;
    uint32_t item = reserved ? take_oldest(s) : take_in_turn(s, class);
    struct ns_sched_entry *it = &s->item[item];
    it->queue = NS_NIL;
    it->class = class; /* of the place; the oldest may have a lower one of its own */
    it->skips = 0;
    size_t i = f->n_window++;
    for (; i > 0 && s->item[f->window[i - 1]].class > class; i--)
        f->window[i] = f->window[i - 1];
    f->window[i] = item;
    return NS_OK;
}

static enum ns_code window_fill(struct ns_sched *s, struct ns_error *err)
{
    struct ns_fair *f = &s->fair;
    size_t most = s->options.look_ahead;
    enum ns_code rc = NS_OK;
    for (uint32_t class; rc == NS_OK && (class = best_class(f)) < CLASSES;) {
        if (f->n_window >= most && s->item[f->window[most - 1]].class <= class)
            break;
        rc = window_insert(s, err);
    }
    return rc;
}

static void window_remove(struct ns_sched *s, size_t i)
{
    struct ns_fair *f = &s->fair;
    f->n_window--;
    memmove(f->window + i, f->window + i + 1, (f->n_window - i) * sizeof *f->window);
}

/* Ages have grown since the last wave. */
static void window_age(struct ns_sched *s)
{
    struct ns_fair *f = &s->fair;
    for (size_t i = 0; i < f->n_window; i++) {
        uint32_t item = f->window[i], class = class_of(&s->item[item], f->now_ms);
        if (class < s->item[item].class)
            s->item[item].class = class;
        size_t k = i;
        for (; k > 0 && s->item[f->window[k - 1]].class > s->item[item].class; k--)
            f->window[k] = f->window[k - 1];
        f->window[k] = item;
    }
}

/* ---- in and out -------------------------------------------------------------------------------------------------------- */

enum ns_code ns_fair_init(struct ns_sched *s, struct ns_error *err)
{
    struct ns_fair *f = &s->fair;
    for (uint32_t class = 0; class < CLASSES; class ++)
        f->ring[class] = NS_NIL;
    f->bucket = ns_budget_take_raw(s->budget, FIRST_BUCKETS * sizeof *f->bucket, 64, err);
    if (!f->bucket)
        return NS_BUDGET;
    memset(f->bucket, 0xff, FIRST_BUCKETS * sizeof *f->bucket);
    f->n_buckets = FIRST_BUCKETS;
    return NS_OK;
}

void ns_fair_fini(struct ns_sched *s)
{
    ns_budget_give(s->budget, s->fair.bucket);
    ns_budget_give(s->budget, s->fair.queue);
    ns_budget_give(s->budget, s->fair.window);
}

enum ns_code ns_fair_add(struct ns_sched *s, uint32_t item, struct ns_error *err)
{
    struct ns_sched_entry *it = &s->item[item];
    enum ns_code rc = queue_get(s, it->batch, it->priority, &it->queue, err);
    if (rc != NS_OK)
        return rc;
    list_add_by_age(s, &s->fair.queue[it->queue].items, item);
    ring_update(s, it->queue);
    return NS_OK;
}

void ns_fair_remove(struct ns_sched *s, uint32_t item)
{
    struct ns_fair *f = &s->fair;
    uint32_t q = s->item[item].queue;
    if (q != NS_NIL) {
        ns_list_remove(s, &f->queue[q].items, item);
        ring_update(s, q);
        return;
    }
    size_t i = 0;
    while (i < f->n_window && f->window[i] != item)
        i++;
    assert(i < f->n_window);
    window_remove(s, i);
}

void ns_fair_begin(struct ns_sched *s, uint32_t item)
{
    ns_fair_remove(s, item);
    s->item[item].begun = true;
    s->item[item].skips = 0;
    ns_list_add(s, &s->begun, item);
}

/* ---- filling a wave ----------------------------------------------------------------------------------------------------- */

void ns_fair_passed(struct ns_sched *s, const uint32_t *item, size_t n, bool reserved)
{
    for (size_t i = 0; i < n; i++) {
        struct ns_sched_entry *it = &s->item[item[i]];
        bool waits = it->refused == s->wave.stamp && it->refusal != NS_PLACE_FULL;
        if (!waits || (reserved && it->refusal == NS_PLACE_MEMORY))
            it->skips++;
    }
}

enum ns_code ns_fair_fill(struct ns_sched *s, int64_t now_ms, struct ns_error *err)
{
    struct ns_fair *f = &s->fair;
    f->now_ms = now_ms;
    for (uint32_t q = 0; q < f->n_queues; q++)
        ring_update(s, q);
    window_age(s);
    enum ns_code rc = window_fill(s, err);
    while (rc == NS_OK && f->n_window > 0) {
        size_t most = f->n_window < s->options.look_ahead ? f->n_window : s->options.look_ahead, i;
        rc = ns_group_pick(s, f->window, most, &i, err);
        if (rc != NS_OK || i == most)
            break;
        uint32_t item = f->window[i], before = s->wave.out.rows;
        enum ns_place place = ns_place_item(s, item, false, err);
        if (place == NS_PLACE_ERROR)
            return NS_BUDGET;
        if (place != NS_PLACED) {
            s->item[item].refused = s->wave.stamp;
            s->item[item].refusal = place;
            continue;
        }
        if (s->wave.out.rows > before)
            ns_fair_passed(s, f->window, i, s->item[item].reserve > 0);
        ns_fair_begin(s, item);
        rc = window_fill(s, err);
    }
    return rc;
}
