/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins of whole columns. What a profile holds comes in millions of rows, and all of it is joined
 * once per report, so each of these is linear in the rows whatever they hold.
 */
#include <stdint.h>

/* Rows of one side of a join, with their order by (group, id). */
struct side {
	int64_t n;
	const int64_t *order, *group, *id;
};

static int compare(const struct side *a, int64_t i, const struct side *b, int64_t j)
{
	int64_t x = a->order[i], y = b->order[j];

	if (a->group[x] != b->group[y])
		return a->group[x] < b->group[y] ? -1 : 1;
	if (a->id[x] != b->id[y])
		return a->id[x] < b->id[y] ? -1 : 1;
	return 0;
}

/* For each row of the one side the places first to last in the other's order with equal keys. */
void gpucorrelate_match(const struct side *ours, const struct side *theirs, int64_t *first,
			int64_t *last)
{
	int64_t low = 0, high = 0, i;

	for (i = 0; i < ours->n; i++) {
		if (i == 0 || compare(ours, i - 1, ours, i)) {
			low = high;
			while (low < theirs->n && compare(theirs, low, ours, i) < 0)
				low++;
			high = low;
			while (high < theirs->n && compare(theirs, high, ours, i) == 0)
				high++;
		}
		first[ours->order[i]] = low;
		last[ours->order[i]] = high;
	}
}

/*
 * Of the candidates for each row's enabler the one that ended last, and when the last other one
 * ended (the least number: none). An end counts no later than the row's start; only those that
 * come before the row in (start, place) are taken.
 */
void gpucorrelate_latest(int64_t n, const int64_t *start, const int64_t *end, int64_t n_lists,
			 const int64_t *const *lists, int64_t *best, int64_t *second)
{
	int64_t i, k;

	for (i = 0; i < n; i++) {
		int64_t chosen = -1, chosen_end = INT64_MIN, other_end = INT64_MIN;

		for (k = 0; k < n_lists; k++) {
			int64_t one = lists[k][i], ended;

			if (one < 0 || one >= n || one == chosen || start[one] > start[i] ||
			    (start[one] == start[i] && one >= i))
				continue;
			ended = end[one] < start[i] ? end[one] : start[i];
			if (ended > chosen_end) {
				other_end = chosen_end > other_end ? chosen_end : other_end;
				chosen = one;
				chosen_end = ended;
			} else if (ended > other_end) {
				other_end = ended;
			}
		}
		best[i] = chosen;
		second[i] = other_end;
	}
}
