/* fair.c - the order in which waiting items begin. */
#include "sched/sched_impl.h"

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

enum ns_code ns_fair_add(struct ns_sched *s, uint32_t item, struct ns_error *err)
{
    (void)err;
    ns_list_add(s, &s->waiting, item);
    return NS_OK;
}

void ns_fair_remove(struct ns_sched *s, uint32_t item)
{
    ns_list_remove(s, &s->waiting, item);
}

void ns_fair_begin(struct ns_sched *s, uint32_t item)
{
    ns_fair_remove(s, item);
    s->item[item].begun = true;
    ns_list_add(s, &s->begun, item);
}

enum ns_code ns_fair_fill(struct ns_sched *s, int64_t now_ms, struct ns_error *err)
{
    (void)now_ms;
    uint32_t item = s->waiting.first, refused = 0;
    while (item != NS_NIL && refused < s->options.look_ahead) {
        uint32_t next = s->item[item].list_next;
        enum ns_place place = ns_place_item(s, item, false, err);
        if (place == NS_PLACE_ERROR)
            return NS_BUDGET;
        if (place == NS_PLACED)
            ns_fair_begin(s, item);
        else
            refused++;
        item = next;
    }
    return NS_OK;
}
