/* select_impl.h - private to queue/: the WHERE of a selection. ?1 batch, ?2 and ?3 first and last id, ?4 state, ?5
 * custom_id; one form per index, because an OR over a parameter would read every row. */
#ifndef NS_QUEUE_SELECT_IMPL_H
#define NS_QUEUE_SELECT_IMPL_H

#include "queue/queue_impl.h"

#define NS_SELECT_REST     " AND (?4 IS NULL OR r.state = ?4) AND (?5 IS NULL OR r.custom_id = ?5) "
#define NS_SELECT_OF_BATCH "r.batch_id = ?1 AND (?2 = 0 OR r.id BETWEEN ?2 AND ?3)" NS_SELECT_REST
#define NS_SELECT_OF_IDS   "r.id BETWEEN ?2 AND ?3 AND ?1 = 0" NS_SELECT_REST
#define NS_SELECT_OF_ALL   "?1 = 0 AND ?2 = 0 AND ?3 = 0" NS_SELECT_REST

#endif
