/* trie.c - the prefix tree of all pending items.
 *
 * WHAT   A radix tree over token ids. A node owns a run of tokens; an item is a path from the root to the end of a node.
 *        Items with a common beginning share its nodes, identical items share all of them.
 *        A want is a range of positions inside one node about which one item needs answers.
 *        A node may hold one kept state (ledger.c): the machine's sequence after some position of its run.
 * WHY    100,000 prompts with a common beginning of 1,800 tokens hold that beginning once, in memory as in work. The
 *        memory is the number of distinct tokens plus some hundred bytes an item. Children are found through one hash
 *        over (parent, first token), so a node with 100,000 children is as quick as one with two.
 * INVARIANTS
 *   1. Two shared children of a node differ in their first token.                            (sched_test: tree_and_ledger_are_sound)
 *   2. n_users of a node counts the items at or below it that have no state between: a state that nobody uses has
 *      n_users 0 and is closed at once.                                                      (sched_test: tree_and_ledger_are_sound)
 *   3. Every node but the root has an item below it, or is a leaf that an insertion has just made.
 *   4. Splitting a node changes no path: tokens, wants, state and users end up where their positions are.
 * READING  insert, split, extend; the rest is bookkeeping. */
#include "sched/sched_impl.h"

#include <assert.h>
#include <string.h>

enum { FIRST_BUCKETS = 1024 };

static uint32_t hash_of(uint32_t parent, uint32_t token)
{
    uint64_t h = ((uint64_t)parent << 32 | token) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 32);
}

enum ns_code ns_sched_reserve(struct ns_budget *budget, void **array, size_t *capacity, size_t n, size_t size,
                              struct ns_error *err)
{
    if (n <= *capacity)
        return NS_OK;
    size_t more = *capacity < 8 ? 8 : *capacity;
    while (more < n)
        if (!ns_size_mul(more, 2, &more))
            return ns_error_set(err, NS_BUDGET, "%zu elements are too many", n);
    size_t bytes;
    if (!ns_size_mul(more, size, &bytes))
        return ns_error_set(err, NS_BUDGET, "%zu elements of %zu bytes are too many", more, size);
    void *grown = ns_budget_resize(budget, *array, bytes, err);
    if (!grown)
        return NS_BUDGET;
    *array = grown;
    *capacity = more;
    return NS_OK;
}

/* As above for the arrays that are counted in 32 bits. */
static enum ns_code reserve32(struct ns_budget *budget, void **array, uint32_t *capacity, uint32_t n, size_t size,
                              struct ns_error *err)
{
    size_t wide = *capacity;
    if (n == NS_NIL)
        return ns_error_set(err, NS_BUDGET, "the tree is full");
    enum ns_code rc = ns_sched_reserve(budget, array, &wide, n, size, err);
    if (rc == NS_OK)
        *capacity = wide > NS_NIL - 1 ? NS_NIL - 1 : (uint32_t)wide;
    return rc;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------ */

static enum ns_code node_new(struct ns_sched *s, uint32_t *out, struct ns_error *err)
{
    uint32_t i = s->node_free;
    if (i != NS_NIL) {
        s->node_free = s->node[i].next;
    } else {
        void *array = s->node;
        enum ns_code rc = reserve32(s->budget, &array, &s->node_capacity, s->n_nodes + 1, sizeof *s->node, err);
        s->node = array;
        if (rc != NS_OK)
            return rc;
        i = s->n_nodes++;
    }
    s->node[i] = (struct ns_trie_node){.parent = NS_NIL,
                                       .child = NS_NIL,
                                       .next = NS_NIL,
                                       .prev = NS_NIL,
                                       .hash_next = NS_NIL,
                                       .want = NS_NIL,
                                       .term = NS_NIL,
                                       .state = NS_NIL};
    *out = i;
    return NS_OK;
}

static void node_free(struct ns_sched *s, uint32_t i)
{
    ns_budget_give(s->budget, s->node[i].token);
    s->node[i] = (struct ns_trie_node){.next = s->node_free, .parent = NS_NIL};
    s->node_free = i;
}

/* Copies tokens into a fresh node. */
static enum ns_code node_fill(struct ns_sched *s, uint32_t i, const uint32_t *token, uint32_t n, struct ns_error *err)
{
    uint32_t *copy = ns_budget_take_raw(s->budget, (size_t)n * sizeof *copy, 64, err);
    if (!copy)
        return NS_BUDGET;
    memcpy(copy, token, (size_t)n * sizeof *copy);
    s->node[i].token = copy;
    s->node[i].n = s->node[i].capacity = n;
    return NS_OK;
}

static void hash_link(struct ns_sched *s, uint32_t i)
{
    struct ns_trie_node *node = &s->node[i];
    uint32_t *bucket = &s->bucket[hash_of(node->parent, node->token[0]) & (s->n_buckets - 1)];
    node->hash_next = *bucket;
    node->hashed = true;
    *bucket = i;
}

static void hash_add(struct ns_sched *s, uint32_t i)
{
    if (s->n_hashed >= s->n_buckets && s->n_buckets < 1u << 30) {
        uint32_t more = s->n_buckets * 2;
        uint32_t *bucket = ns_budget_take_raw(s->budget, (size_t)more * sizeof *bucket, 64, NULL);
        if (bucket) { /* without it the chains get longer, nothing else */
            ns_budget_give(s->budget, s->bucket);
            s->bucket = bucket;
            s->n_buckets = more;
            memset(bucket, 0xff, (size_t)more * sizeof *bucket);
            for (uint32_t j = 1; j < s->n_nodes; j++)
                if (s->node[j].hashed)
                    hash_link(s, j);
        }
    }
    hash_link(s, i);
    s->n_hashed++;
}

static void hash_remove(struct ns_sched *s, uint32_t i)
{
    struct ns_trie_node *node = &s->node[i];
    if (!node->hashed)
        return;
    uint32_t *at = &s->bucket[hash_of(node->parent, node->token[0]) & (s->n_buckets - 1)];
    while (*at != i)
        at = &s->node[*at].hash_next;
    *at = node->hash_next;
    node->hash_next = NS_NIL;
    node->hashed = false;
    s->n_hashed--;
}

static uint32_t child_find(const struct ns_sched *s, uint32_t parent, uint32_t token)
{
    uint32_t i = s->bucket[hash_of(parent, token) & (s->n_buckets - 1)];
    while (i != NS_NIL && !(s->node[i].parent == parent && s->node[i].token[0] == token))
        i = s->node[i].hash_next;
    return i;
}

static void child_link(struct ns_sched *s, uint32_t parent, uint32_t i, bool share)
{
    struct ns_trie_node *node = &s->node[i], *above = &s->node[parent];
    node->parent = parent;
    node->start = ns_trie_end(above);
    node->prev = NS_NIL;
    node->next = above->child;
    if (above->child != NS_NIL)
        s->node[above->child].prev = i;
    above->child = i;
    if (share)
        hash_add(s, i);
}

static void child_unlink(struct ns_sched *s, uint32_t i)
{
    hash_remove(s, i);
    struct ns_trie_node *node = &s->node[i];
    if (node->prev != NS_NIL)
        s->node[node->prev].next = node->next;
    else
        s->node[node->parent].child = node->next;
    if (node->next != NS_NIL)
        s->node[node->next].prev = node->prev;
}

/* ---- wants ------------------------------------------------------------------------------------------------------------ */

static void want_link(struct ns_sched *s, uint32_t w, uint32_t node)
{
    struct ns_want *want = &s->want[w];
    want->node = node;
    want->prev = NS_NIL;
    want->next = s->node[node].want;
    if (want->next != NS_NIL)
        s->want[want->next].prev = w;
    s->node[node].want = w;
}

static void want_unlink(struct ns_sched *s, uint32_t w)
{
    struct ns_want *want = &s->want[w];
    if (want->prev != NS_NIL)
        s->want[want->prev].next = want->next;
    else
        s->node[want->node].want = want->next;
    if (want->next != NS_NIL)
        s->want[want->next].prev = want->prev;
}

static enum ns_code want_new(struct ns_sched *s, uint32_t item, uint32_t *out, struct ns_error *err)
{
    uint32_t w = s->want_free;
    if (w != NS_NIL) {
        s->want_free = s->want[w].next;
    } else {
        void *array = s->want;
        enum ns_code rc = reserve32(s->budget, &array, &s->want_capacity, s->n_wants + 1, sizeof *s->want, err);
        s->want = array;
        if (rc != NS_OK)
            return rc;
        w = s->n_wants++;
    }
    uint32_t first = s->item[item].want;
    s->want[w] = (struct ns_want){.item = item, .item_next = first, .item_prev = NS_NIL};
    if (first != NS_NIL)
        s->want[first].item_prev = w;
    s->item[item].want = w;
    *out = w;
    return NS_OK;
}

enum ns_code ns_trie_expect_want(struct ns_sched *s, struct ns_error *err)
{
    if (s->want_free != NS_NIL)
        return NS_OK;
    void *array = s->want;
    enum ns_code rc = reserve32(s->budget, &array, &s->want_capacity, s->n_wants + 1, sizeof *s->want, err);
    s->want = array;
    return rc;
}

void ns_trie_want_drop(struct ns_sched *s, uint32_t w)
{
    struct ns_want *want = &s->want[w];
    want_unlink(s, w);
    if (want->item_prev != NS_NIL)
        s->want[want->item_prev].item_next = want->item_next;
    else
        s->item[want->item].want = want->item_next;
    if (want->item_next != NS_NIL)
        s->want[want->item_next].item_prev = want->item_prev;
    want->next = s->want_free;
    s->want_free = w;
}

enum ns_code ns_trie_want(struct ns_sched *s, uint32_t item, uint32_t lo, uint32_t hi, uint32_t target,
                          struct ns_error *err)
{
    uint32_t i = s->item[item].node;
    while (s->node[i].start > hi)
        i = s->node[i].parent;
    s->item[item].n_wanted += hi - lo + 1;
    for (uint32_t top = hi;; i = s->node[i].parent) {
        uint32_t w;
        enum ns_code rc = want_new(s, item, &w, err);
        if (rc != NS_OK)
            return rc;
        uint32_t start = s->node[i].start;
        s->want[w].lo = lo > start ? lo : start;
        s->want[w].hi = top;
        s->want[w].target = target;
        want_link(s, w, i);
        if (lo >= start)
            return NS_OK;
        top = start - 1;
        target = s->node[i].token[0];
    }
}

/* ---- users of states ------------------------------------------------------------------------------------------------- */

/* Adds d users from node upward, up to and including the nearest state; a state without users is closed. */
static void users_add(struct ns_sched *s, uint32_t i, uint32_t d)
{
    for (; i != NS_NIL; i = s->node[i].parent) {
        s->node[i].n_users += d;
        if (s->node[i].state != NS_NIL)
            return;
    }
}

static void users_sub(struct ns_sched *s, uint32_t i, uint32_t d)
{
    for (; i != NS_NIL; i = s->node[i].parent) {
        assert(s->node[i].n_users >= d);
        s->node[i].n_users -= d;
        if (s->node[i].state != NS_NIL) {
            if (s->node[i].n_users == 0)
                ns_ledger_drop(s, i); /* tells the ancestors, with no users to tell of */
            return;
        }
    }
}

static void term_link(struct ns_sched *s, uint32_t item, uint32_t node)
{
    struct ns_sched_entry *it = &s->item[item];
    it->node = node;
    it->term_prev = NS_NIL;
    it->term_next = s->node[node].term;
    if (it->term_next != NS_NIL)
        s->item[it->term_next].term_prev = item;
    s->node[node].term = item;
}

static void term_unlink(struct ns_sched *s, uint32_t item)
{
    struct ns_sched_entry *it = &s->item[item];
    if (it->term_prev != NS_NIL)
        s->item[it->term_prev].term_next = it->term_next;
    else
        s->node[it->node].term = it->term_next;
    if (it->term_next != NS_NIL)
        s->item[it->term_next].term_prev = it->term_prev;
}

void ns_trie_attach(struct ns_sched *s, uint32_t item, uint32_t node)
{
    term_link(s, item, node);
    users_add(s, node, 1);
}

void ns_trie_detach(struct ns_sched *s, uint32_t item)
{
    term_unlink(s, item);
    users_sub(s, s->item[item].node, 1);
}

void ns_trie_move(struct ns_sched *s, uint32_t item, uint32_t node)
{
    uint32_t old = s->item[item].node;
    if (node == old)
        return;
    term_unlink(s, item);
    term_link(s, item, node);
    users_add(s, node, 1); /* first, so that a state above both is not closed between */
    users_sub(s, old, 1);
}

/* ---- growing and shrinking --------------------------------------------------------------------------------------------- */

/* Cuts node i after its first k tokens; i stays the lower part, *upper is the new one above it. */
static enum ns_code split(struct ns_sched *s, uint32_t i, uint32_t k, uint32_t *upper, struct ns_error *err)
{
    assert(k > 0 && k < s->node[i].n);
    uint32_t at = s->node[i].start + k, straddling = 0;
    for (uint32_t w = s->node[i].want; w != NS_NIL; w = s->want[w].next)
        straddling += s->want[w].lo < at && s->want[w].hi >= at;
    uint32_t u;
    enum ns_code rc = node_new(s, &u, err);
    if (rc != NS_OK)
        return rc;
    rc = node_fill(s, u, s->node[i].token, k, err);
    uint32_t *lower = NULL;
    uint32_t n_lower = s->node[i].n - k;
    if (rc == NS_OK && !(lower = ns_budget_take_raw(s->budget, (size_t)n_lower * sizeof *lower, 64, err)))
        rc = NS_BUDGET;
    if (rc == NS_OK) { /* so that nothing below can fail: straddling wants need one more each */
        void *array = s->want;
        rc = straddling > NS_NIL - 1 - s->n_wants
                 ? ns_error_set(err, NS_BUDGET, "the tree is full")
                 : reserve32(s->budget, &array, &s->want_capacity, s->n_wants + straddling, sizeof *s->want, err);
        s->want = array;
    }
    if (rc != NS_OK) {
        ns_budget_give(s->budget, lower);
        node_free(s, u);
        return rc;
    }
    uint32_t parent = s->node[i].parent;
    bool share = s->node[i].hashed;
    child_unlink(s, i);
    child_link(s, parent, u, share);
    struct ns_trie_node *up = &s->node[u], *low = &s->node[i];
    memcpy(lower, low->token + k, (size_t)n_lower * sizeof *lower);
    ns_budget_give(s->budget, low->token);
    low->token = lower;
    low->n = low->capacity = n_lower;
    child_link(s, u, i, share);
    if (low->state != NS_NIL && s->kept[low->state].at <= at) {
        up->state = low->state;
        s->kept[up->state].node = u;
        low->state = NS_NIL;
    }
    up->n_users = low->state != NS_NIL ? 0 : low->n_users;
    for (uint32_t w = low->want, next; w != NS_NIL; w = next) {
        next = s->want[w].next;
        if (s->want[w].lo >= at)
            continue;
        if (s->want[w].hi >= at) {
            uint32_t rest = NS_NIL;
            rc = want_new(s, s->want[w].item, &rest, NULL);
            assert(rc == NS_OK);
            s->want[rest].lo = at;
            s->want[rest].hi = s->want[w].hi;
            s->want[rest].target = s->want[w].target;
            s->want[w].hi = at - 1;
            s->want[w].target = low->token[0];
            want_link(s, rest, i);
        }
        want_unlink(s, w);
        want_link(s, w, u);
    }
    *upper = u;
    return NS_OK;
}

static enum ns_code leaf_new(struct ns_sched *s, uint32_t parent, const uint32_t *token, uint32_t n, bool share,
                             uint32_t *out, struct ns_error *err)
{
    uint32_t i;
    enum ns_code rc = node_new(s, &i, err);
    if (rc != NS_OK)
        return rc;
    rc = node_fill(s, i, token, n, err);
    if (rc != NS_OK) {
        node_free(s, i);
        return rc;
    }
    child_link(s, parent, i, share);
    *out = i;
    return NS_OK;
}

enum ns_code ns_trie_insert(struct ns_sched *s, const uint32_t *token, uint32_t n, bool share, uint32_t *node,
                            struct ns_error *err)
{
    if (!share)
        return leaf_new(s, 0, token, n, false, node, err);
    uint32_t at = 0, done = 0;
    while (done < n) {
        uint32_t child = child_find(s, at, token[done]);
        if (child == NS_NIL)
            return leaf_new(s, at, token + done, n - done, true, node, err);
        const struct ns_trie_node *c = &s->node[child];
        uint32_t most = c->n < n - done ? c->n : n - done, k = 1;
        while (k < most && c->token[k] == token[done + k])
            k++;
        if (k < c->n) {
            enum ns_code rc = split(s, child, k, &child, err);
            if (rc != NS_OK)
                return rc;
        }
        at = child;
        done += k;
    }
    *node = at;
    return NS_OK;
}

enum ns_code ns_trie_extend(struct ns_sched *s, uint32_t item, uint32_t token, uint32_t *node, struct ns_error *err)
{
    uint32_t i = s->item[item].node;
    struct ns_trie_node *at = &s->node[i];
    bool single = s->item[item].term_next == NS_NIL && s->item[item].term_prev == NS_NIL;
    if (single && at->child == NS_NIL && at->n > 0) { /* nobody else is here: the run itself grows */
        if (at->n == at->capacity) {
            size_t capacity = at->capacity;
            void *array = at->token;
            enum ns_code rc = ns_sched_reserve(s->budget, &array, &capacity, (size_t)at->n + 1, sizeof *at->token, err);
            if (rc != NS_OK)
                return rc;
            at->token = array;
            at->capacity = (uint32_t)capacity;
        }
        at->token[at->n++] = token;
        *node = i;
        return NS_OK;
    }
    bool share = !s->options.alone;
    uint32_t child = share ? child_find(s, i, token) : NS_NIL;
    if (child == NS_NIL)
        return leaf_new(s, i, &token, 1, share, node, err);
    if (s->node[child].n > 1)
        return split(s, child, 1, node, err);
    *node = child;
    return NS_OK;
}

void ns_trie_prune(struct ns_sched *s, uint32_t i)
{
    while (i != 0 && s->node[i].term == NS_NIL && s->node[i].child == NS_NIL) {
        uint32_t parent = s->node[i].parent;
        assert(s->node[i].state == NS_NIL && s->node[i].n_users == 0 && s->node[i].want == NS_NIL);
        child_unlink(s, i);
        node_free(s, i);
        i = parent;
    }
}

enum ns_code ns_trie_init(struct ns_sched *s, struct ns_error *err)
{
    s->node_free = s->want_free = NS_NIL;
    s->bucket = ns_budget_take_raw(s->budget, FIRST_BUCKETS * sizeof *s->bucket, 64, err);
    if (!s->bucket)
        return NS_BUDGET;
    memset(s->bucket, 0xff, FIRST_BUCKETS * sizeof *s->bucket);
    s->n_buckets = FIRST_BUCKETS;
    uint32_t root;
    return node_new(s, &root, err);
}

void ns_trie_fini(struct ns_sched *s)
{
    for (uint32_t i = 0; i < s->n_nodes; i++)
        ns_budget_give(s->budget, s->node[i].token);
    ns_budget_give(s->budget, s->node);
    ns_budget_give(s->budget, s->bucket);
    ns_budget_give(s->budget, s->want);
}
