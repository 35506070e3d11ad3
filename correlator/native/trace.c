/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a Perfetto trace has millions of: intervals laid in rows, and the packets that draw them.
 *
 * The official Python classes take 4.3 us for an interval of two packets and two details (upb,
 * measured), without what it costs to hand them the numbers one by one: a million events are four
 * million intervals. This takes 0.05 us. Everything of which a trace has only a few is made with
 * those classes, and the tests read all of it back with them.
 * Field numbers: protos/perfetto/trace/trace_packet.proto, track_event/track_event.proto and
 * track_event/debug_annotation.proto of Perfetto.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Rows that take intervals within intervals; those beyond take one after the other only, so that
 * many intervals which all overlap cost no more than a sort. */
#define NESTED_ROWS 64

struct rows {
	int64_t n, *top, *below;
	int64_t n_busy, *busy, n_idle, *idle; /* heaps of flat rows: by end, and by number */
	const int64_t *end;
	int64_t *order, n_order;
};

static int sooner(const struct rows *r, int64_t a, int64_t b)
{
	int64_t x = r->end[r->top[a]], y = r->end[r->top[b]];

	return x != y ? x < y : a < b;
}

static int before(const struct rows *r, const int64_t *heap, int64_t a, int64_t b)
{
	return heap == r->busy ? sooner(r, a, b) : a < b;
}

static void push(const struct rows *r, int64_t *heap, int64_t *n, int64_t row)
{
	int64_t at = (*n)++;

	while (at && before(r, heap, row, heap[(at - 1) / 2])) {
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = row;
}

static int64_t pop(const struct rows *r, int64_t *heap, int64_t *n)
{
	int64_t least = heap[0], last = heap[--*n], at = 0, child;

	while ((child = 2 * at + 1) < *n) {
		if (child + 1 < *n && before(r, heap, heap[child + 1], heap[child]))
			child++;
		if (!before(r, heap, heap[child], last))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return least;
}

static void finish(struct rows *r, int64_t row)
{
	int64_t i = r->top[row];

	r->order[r->n_order++] = 2 * i + 1;
	r->top[row] = r->below[i];
}

/* The row of an interval: the first that it fits into. */
static int64_t place(struct rows *r, int64_t i, int64_t start, int64_t nested)
{
	int64_t row;

	for (row = 0; row < nested && row < r->n; row++) {
		while (r->top[row] >= 0 && r->end[r->top[row]] <= start)
			finish(r, row);
		if (r->top[row] < 0 || r->end[r->top[row]] >= r->end[i])
			return row;
	}
	if (row < nested) {
		r->top[r->n] = -1;
		return r->n++;
	}
	while (r->n_busy && r->end[r->top[r->busy[0]]] <= start) {
		row = pop(r, r->busy, &r->n_busy);
		finish(r, row);
		push(r, r->idle, &r->n_idle, row);
	}
	if (r->n_idle)
		return pop(r, r->idle, &r->n_idle);
	r->top[r->n] = -1;
	return r->n++;
}

static void finish_all(struct rows *r)
{
	int64_t row;

	for (row = 0; row < r->n; row++)
		while (r->top[row] >= 0)
			finish(r, row);
	r->n = r->n_busy = r->n_idle = 0;
}

/*
 * Lays intervals in rows, so that in no row two of them overlap unless one lies within the other,
 * and then only where "nested" says so. They come sorted by group and start, of equal starts the
 * longer first; no end lies before its start.
 *
 * row: the row of each within its group. order: the begins (2 * i) and ends (2 * i + 1) of all, of
 * one row as they must be written. Returns 0, or -1 where there is no memory.
 */
int gpucorrelate_rows(int64_t n, const int64_t *group, const int64_t *start, const int64_t *end,
		      int64_t nested, int64_t *row, int64_t *order)
{
	struct rows r = { .end = end, .order = order };
	int64_t *memory, most = nested ? NESTED_ROWS : 0, i;

	memory = malloc((4 * (size_t)n + 1) * sizeof(*memory));
	if (!memory)
		return -1;
	r.top = memory;
	r.below = memory + n;
	r.busy = memory + 2 * n;
	r.idle = memory + 3 * n;
	for (i = 0; i < n; i++) {
		if (i && group[i] != group[i - 1])
			finish_all(&r);
		row[i] = place(&r, i, start[i], most);
		r.below[i] = r.top[row[i]];
		r.top[row[i]] = i;
		r.order[r.n_order++] = 2 * i;
		if (row[i] >= most)
			push(&r, r.busy, &r.n_busy, row[i]);
	}
	finish_all(&r);
	free(memory);
	return 0;
}

/* How an argument's values are meant; a value that is not there is 0, of a number below 0. */
enum arg_kind { ARG_STRING, ARG_NUMBER, ARG_POINTER };

struct arg {
	int64_t name, kind;
	const int64_t *values;
};

/* Intervals or moments. Numbers of names, categories and texts are those of the interned data. */
struct events {
	int64_t n;
	const int64_t *order; /* 2 * i: begins, 2 * i + 1: ends; NULL: moments, as they come */
	const int64_t *start, *end, *track, *name, *category;
	int64_t n_args;
	const struct arg *args;
	const int64_t *out, *out_count; /* flows that leave: the first's number, how many */
	const int64_t *in;		/* the one that comes in; 0 none */
};

/* TrackEvent.Type of Perfetto's protos/perfetto/trace/track_event/track_event.proto */
enum event_type { BEGIN = 1, END = 2, INSTANT = 3, COUNTER = 4 };

/* The most that anything here takes but flows: tags and numbers of two and ten bytes. */
#define MOST_HEAD 64
#define MOST_FIXED 96
#define MOST_ARG 40
#define FLOW 10

static uint8_t *varint(uint8_t *p, uint64_t value)
{
	while (value >= 0x80) {
		*p++ = (uint8_t)(value | 0x80);
		value >>= 7;
	}
	*p++ = (uint8_t)value;
	return p;
}

static uint8_t *number(uint8_t *p, uint64_t field, uint64_t value)
{
	return varint(varint(p, field << 3), value);
}

static uint8_t *fixed64(uint8_t *p, uint64_t field, uint64_t value)
{
	int k;

	p = varint(p, field << 3 | 1);
	for (k = 0; k < 8; k++)
		*p++ = (uint8_t)(value >> (8 * k));
	return p;
}

static uint8_t *argument(uint8_t *p, const struct arg *arg, int64_t i)
{
	static const uint64_t fields[] = { 17, 3, 7 };
	int64_t value = arg->values[i];
	uint8_t body[MOST_ARG], *q;

	if (arg->kind == ARG_NUMBER ? value < 0 : !value)
		return p;
	q = number(body, 1, (uint64_t)arg->name);
	q = number(q, fields[arg->kind], (uint64_t)value);
	p = varint(p, 4 << 3 | 2);
	p = varint(p, (uint64_t)(q - body));
	memcpy(p, body, (size_t)(q - body));
	return p + (q - body);
}

/* Puts a packet's head before the track event that stands MOST_HEAD bytes further on. */
static uint8_t *packet(uint8_t *p, uint64_t t, const uint8_t *event_end)
{
	uint8_t head[MOST_HEAD], front[16], *q, *f;
	size_t event = (size_t)(event_end - (p + MOST_HEAD));

	q = number(head, 8, t);
	q = number(q, 10, 1); /* trusted_packet_sequence_id */
	q = number(q, 13, 2); /* sequence_flags: SEQ_NEEDS_INCREMENTAL_STATE */
	q = varint(q, 11 << 3 | 2);
	q = varint(q, event);
	f = varint(front, 1 << 3 | 2);
	f = varint(f, (uint64_t)(q - head) + event);
	memcpy(p, front, (size_t)(f - front));
	p += f - front;
	memmove(p + (q - head), event_end - event, event);
	memcpy(p, head, (size_t)(q - head));
	return p + (q - head) + event;
}

static uint8_t *details(uint8_t *p, const struct events *e, int64_t i)
{
	int64_t k;

	if (e->category[i])
		p = number(p, 3, (uint64_t)e->category[i]);
	p = number(p, 10, (uint64_t)e->name[i]);
	for (k = 0; k < e->n_args; k++)
		p = argument(p, &e->args[k], i);
	for (k = 0; e->out && k < e->out_count[i]; k++)
		p = fixed64(p, 47, (uint64_t)(e->out[i] + k));
	if (e->in && e->in[i])
		p = fixed64(p, 48, (uint64_t)e->in[i]);
	return p;
}

/*
 * Writes packets of events, from the one numbered "from" on, for as long as there is room.
 * Returns the number of the first that was not written; "used" is how many bytes were.
 */
int64_t gpucorrelate_packets(const struct events *e, int64_t from, uint8_t *out, int64_t room,
			     int64_t *used)
{
	uint8_t *p = out;
	int64_t at;

	for (at = from; at < e->n; at++) {
		int64_t i = e->order ? e->order[at] / 2 : at;
		int ends = e->order && e->order[at] & 1;
		int64_t most = MOST_HEAD + MOST_FIXED + e->n_args * MOST_ARG;
		uint8_t *q = p + MOST_HEAD;

		if (e->out && !ends)
			most += e->out_count[i] * FLOW;
		if (room - (p - out) < most)
			break;
		q = number(q, 9, ends ? END : e->order ? BEGIN : INSTANT);
		q = number(q, 11, (uint64_t)e->track[i]);
		if (!ends)
			q = details(q, e, i);
		p = packet(p, (uint64_t)(ends ? e->end[i] : e->start[i]), q);
	}
	*used = p - out;
	return at;
}

/* The same of readings of one counter: whole numbers, or others where there are any. */
int64_t gpucorrelate_readings(int64_t n, const int64_t *t, const int64_t *whole,
			      const uint64_t *bits, int64_t track, int64_t from, uint8_t *out,
			      int64_t room, int64_t *used)
{
	uint8_t *p = out;
	int64_t i;

	for (i = from; i < n && room - (p - out) >= MOST_HEAD + MOST_FIXED; i++) {
		uint8_t *q = number(p + MOST_HEAD, 9, COUNTER);

		q = number(q, 11, (uint64_t)track);
		q = bits ? fixed64(q, 44, bits[i]) : number(q, 30, (uint64_t)whole[i]);
		p = packet(p, (uint64_t)t[i], q);
	}
	*used = p - out;
	return i;
}
