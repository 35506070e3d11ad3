/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows on their way to the sender: chunks that hold columns as the wire has them. Our thread fills
 * one chunk of each kind; the sender takes what is there, full or not.
 */
#include <stdlib.h>
#include <string.h>

#include "gcu.h"

#define CHUNK_ROWS 2048

struct chunk {
	struct chunk *next;
	uint32_t rows;
	uint8_t data[];
};

struct queue {
	struct chunk *first, *last; /* the last one is being filled */
};

/* Sizes of the columns of each kind, 0 behind the last. */
#define GCU_MAX_COLUMNS 16
#define X(type, name) sizeof(type),
static const uint8_t sizes[GCU_KIND_COUNT][GCU_MAX_COLUMNS] = {
	{ GCU_CUDA_API(X) },
	{ GCU_GPU_OP(X) },
	{ GCU_GPU_SYNC(X) },
	{ GCU_CLOCK_PAIR(X) },
};
#undef X
#define X(type, name) +sizeof(type)
static const uint32_t widths[GCU_KIND_COUNT] = {
	0 GCU_CUDA_API(X),
	0 GCU_GPU_OP(X),
	0 GCU_GPU_SYNC(X),
	0 GCU_CLOCK_PAIR(X),
};
#undef X

static struct queue queues[GCU_KIND_COUNT];
static struct chunk *idle;
static uint32_t made, allowed, widest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(struct chunk *chunk)
{
	for (struct chunk *next; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
}

int gcu_rows_open(uint32_t chunks)
{
	allowed = chunks;
	widest = 0;
	for (int kind = 0; kind < GCU_KIND_COUNT; kind++)
		widest = widths[kind] > widest ? widths[kind] : widest;
	return 0;
}

void gcu_rows_close(void)
{
	pthread_mutex_lock(&lock);
	for (int kind = 0; kind < GCU_KIND_COUNT; kind++) {
		drop(queues[kind].first);
		queues[kind].first = queues[kind].last = NULL;
		__atomic_store_n(&gcu_seen.waiting[kind], 0, __ATOMIC_RELAXED);
	}
	drop(idle);
	idle = NULL;
	made = 0;
	pthread_mutex_unlock(&lock);
}

void gcu_rows_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	gcu_rows_close();
}

/* A chunk to fill, or NULL: then what comes is lost until the sender has taken something. */
static struct chunk *room(struct queue *queue)
{
	struct chunk *chunk = queue->last;

	if (chunk && chunk->rows < CHUNK_ROWS)
		return chunk;
	if (idle) {
		chunk = idle;
		idle = chunk->next;
	} else {
		chunk = made < allowed ? malloc(sizeof(*chunk) + (size_t)CHUNK_ROWS * widest)
				       : NULL;
		if (!chunk)
			return NULL;
		made++;
	}
	chunk->next = NULL;
	chunk->rows = 0;
	if (queue->last)
		queue->last->next = chunk;
	else
		queue->first = chunk;
	return queue->last = chunk;
}

void gcu_rows_lock(void)
{
	pthread_mutex_lock(&lock);
}

void gcu_rows_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* A count that is changed under the lock and read without it. */
static void add(uint64_t *count, uint64_t by)
{
	__atomic_store_n(count, *count + by, __ATOMIC_RELAXED);
}

/* Under the lock. Each field goes to the end of its column; where that is, is known when this is
 * compiled. */
#define X(type, name)                                                              \
	memcpy(at + (size_t)chunk->rows * sizeof(type), &row->name, sizeof(type)); \
	at += (size_t)CHUNK_ROWS * sizeof(type);
#define PUT(kind, columns)                                          \
	void gcu_put_##kind(const struct gcu_##kind *row)           \
	{                                                           \
		struct chunk *chunk;                                \
		uint8_t *at;                                        \
                                                                    \
		chunk = room(&queues[GCU_KIND_##kind]);             \
		if (chunk) {                                        \
			at = chunk->data;                           \
			columns(X);                                 \
			chunk->rows++;                              \
			add(&gcu_seen.rows[GCU_KIND_##kind], 1);    \
			add(&gcu_seen.waiting[GCU_KIND_##kind], 1); \
		} else {                                            \
			gcu_count(lost_rows, 1);                    \
		}                                                   \
	}
PUT(cuda_api, GCU_CUDA_API)
PUT(gpu_op, GCU_GPU_OP)
PUT(gpu_sync, GCU_GPU_SYNC)
PUT(clock_pair, GCU_CLOCK_PAIR)
#undef PUT
#undef X

/* Takes whole chunks while they fit; the lock is held only to unhook them. */
static struct chunk *unhook(struct queue *queue, uint64_t *waiting, uint32_t most, uint32_t *rows)
{
	struct chunk *first = NULL, **end = &first;

	pthread_mutex_lock(&lock);
	while (queue->first && *rows + queue->first->rows <= most) {
		struct chunk *chunk = queue->first;

		queue->first = chunk->next;
		if (!queue->first)
			queue->last = NULL;
		*rows += chunk->rows;
		chunk->next = NULL;
		*end = chunk;
		end = &chunk->next;
	}
	add(waiting, -(uint64_t)*rows);
	pthread_mutex_unlock(&lock);
	return first;
}

static void give_back(struct chunk *chunk)
{
	pthread_mutex_lock(&lock);
	while (chunk) {
		struct chunk *next = chunk->next;

		chunk->next = idle;
		idle = chunk;
		chunk = next;
	}
	pthread_mutex_unlock(&lock);
}

/*
 * Rows of a kind, oldest first, column after column into `out`, which has room for `most` rows of
 * it. Returns how many.
 */
GCU_PUBLIC uint32_t gcu_take(uint32_t kind, uint32_t most, uint8_t *out)
{
	uint32_t rows = 0, before = 0;
	struct chunk *taken, *chunk;

	if (kind >= GCU_KIND_COUNT)
		return 0;
	taken = unhook(&queues[kind], &gcu_seen.waiting[kind], most, &rows);
	for (chunk = taken; chunk; before += chunk->rows, chunk = chunk->next) {
		const uint8_t *from = chunk->data;
		uint8_t *to = out;

		for (const uint8_t *size = sizes[kind]; *size; size++) {
			memcpy(to + (size_t)before * *size, from, (size_t)chunk->rows * *size);
			from += (size_t)CHUNK_ROWS * *size;
			to += (size_t)rows * *size;
		}
	}
	give_back(taken);
	return rows;
}

/* Bytes of a row of a kind on the wire; 0 for a kind that is not. */
GCU_PUBLIC uint32_t gcu_width(uint32_t kind)
{
	return kind < GCU_KIND_COUNT ? widths[kind] : 0;
}

/*
 * The different numbers in a column, into `out` (room for `size`). Returns how many there are, or
 * UINT32_MAX when there is no room.
 */
GCU_PUBLIC uint32_t gcu_distinct(const uint32_t *column, uint32_t rows, uint32_t *out,
				 uint32_t size)
{
	static uint8_t seen[GCU_NAMES / 8];
	uint32_t count = 0;

	memset(seen, 0, sizeof(seen));
	for (uint32_t i = 0; i < rows; i++) {
		uint32_t value = column[i] % GCU_NAMES;

		if (seen[value / 8] & 1u << value % 8)
			continue;
		if (count == size)
			return UINT32_MAX;
		seen[value / 8] |= 1u << value % 8;
		out[count++] = value;
	}
	return count;
}

/* Replaces each number of a column by what a table of GCU_NAMES numbers has in its place. */
GCU_PUBLIC void gcu_replace(uint32_t *column, uint32_t rows, const uint32_t *table)
{
	for (uint32_t i = 0; i < rows; i++)
		column[i] = table[column[i] % GCU_NAMES];
}
