/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU agent's native half. CUPTI fills buffers from a bounded pool; a thread of ours turns each
 * completed one into columns of the wire's kinds, which the process's sender takes. No Python runs
 * per record, none in CUPTI's callbacks; a callback takes one short lock and never calls CUPTI.
 *
 * Whatever is full is refused and counted: a pool without a free buffer makes CUPTI drop records
 * (it tells how many), rows without room are dropped by kind.
 */
#ifndef GCU_H
#define GCU_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "columns.gen.h"

enum gcu_kind {
#define X(name, columns) GCU_KIND_##name,
	GCU_KINDS(X)
#undef X
		GCU_KIND_COUNT,
};

#define X(type, name) type name;
struct gcu_cuda_api {
	GCU_CUDA_API(X)
};
struct gcu_gpu_op {
	GCU_GPU_OP(X)
};
struct gcu_gpu_sync {
	GCU_GPU_SYNC(X)
};
struct gcu_clock_pair {
	GCU_CLOCK_PAIR(X)
};
#undef X

/* What Python sets; shared with probes/agents/cupti/shim.py. */
struct gcu_settings {
	uint32_t buffer_bytes; /* of one of CUPTI's buffers */
	uint32_t buffers;      /* in the pool */
	uint32_t chunks;       /* of rows that may wait for the sender, all kinds together */
	uint32_t version;      /* test builds: take records to be of this version */
};

/* What was seen and what was lost; shared with probes/agents/cupti/shim.py. */
struct gcu_counts {
	uint64_t records;	/* read, of all kinds */
	uint64_t buffers;	/* completed */
	uint64_t refused;	/* times the pool had no buffer for CUPTI */
	uint64_t cupti_dropped; /* records, as CUPTI says */
	uint64_t unread_bytes;	/* of buffers with something unknown in them */
	uint64_t lost_rows;	/* rows for which there was no room */
	uint64_t lost_names;	/* names beyond the table */
	uint64_t overhead_ns;	/* CUPTI's own, as its records tell */
	uint64_t busy_ns;	/* CPU time of our thread */
	uint64_t clock_steps;	/* times the profiler's clock jumped against CLOCK_MONOTONIC */
	uint64_t rows[GCU_KIND_COUNT];
	uint64_t waiting[GCU_KIND_COUNT]; /* rows that wait for the sender */
};

/* Names: texts by small numbers, from 1. Added under the rows' lock. */
#define GCU_NAMES 16384
#define GCU_NAME_BYTES 1000 /* the wire refuses more than 1,024 */

uint32_t gcu_names_add(const char *text);
uint32_t gcu_names_of_call(int api, uint32_t callback);
void gcu_names_forget(void);

/* Rows: chunks of columns, filled by our thread, taken by the sender. */
int gcu_rows_open(uint32_t chunks);
void gcu_rows_close(void);
void gcu_rows_reset(void); /* in a forked child: what waits is the parent's */
void gcu_rows_lock(void);  /* held while rows are put */
void gcu_rows_unlock(void);
void gcu_put_cuda_api(const struct gcu_cuda_api *row);
void gcu_put_gpu_op(const struct gcu_gpu_op *row);
void gcu_put_gpu_sync(const struct gcu_gpu_sync *row);
void gcu_put_clock_pair(const struct gcu_clock_pair *row);

/* Buffers: a pool for CUPTI, and the thread that reads what it filled. */
int gcu_buffers_open(uint32_t bytes, uint32_t count);
int gcu_buffers_close(void); /* -1: one is lent */
void gcu_buffers_reset(void);
void gcu_buffers_drain(void); /* waits until all completed ones are read */
void gcu_buffer_wanted(uint8_t **buffer, size_t *size, size_t *max_records);
void gcu_buffer_filled(uint8_t *buffer, size_t size);

/* Records to rows. */
int gcu_lengths_for(uint32_t version);
uint32_t gcu_length_of(uint32_t kind);
void gcu_gather(const uint8_t *buffer, size_t size);

/* The clock of records: what is added to them to get CLOCK_MONOTONIC. */
void gcu_clock_set(int64_t offset_ns);
int64_t gcu_monotonic_ns(void);

extern struct gcu_counts gcu_seen; /* changed with gcu_count only */
#define gcu_count(field, by) __atomic_fetch_add(&gcu_seen.field, (by), __ATOMIC_RELAXED)
#define gcu_read(field) __atomic_load_n(&gcu_seen.field, __ATOMIC_RELAXED)

#define GCU_PUBLIC __attribute__((visibility("default")))

#endif
