/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where CUPTI's activity records keep what is read of them. No CUDA headers are needed to build.
 *
 * The places of these fields are the same in CUPTI 11.8 to 13.5 (offsetof over the headers of
 * sixteen releases); what changes is how long a record is, because fields are appended. So lengths
 * are keyed by version, and a version that is not in the table is refused. Where the library can
 * be asked without risk, its own steps over a buffer are compared with the table too.
 */
#ifndef GCU_RECORDS_H
#define GCU_RECORDS_H

#include <stdint.h>

/* CUpti_ActivityKind; MEMCPY to OVERHEAD as in cupti_activity.h. */
enum {
	GCU_REC_MEMCPY = 1,
	GCU_REC_MEMSET = 2,
	GCU_REC_DRIVER = 4,
	GCU_REC_RUNTIME = 5,
	GCU_REC_KERNEL = 10, /* CONCURRENT_KERNEL */
	GCU_REC_OVERHEAD = 17,
	GCU_REC_SYNC = 38,
	GCU_REC_EXTERNAL = 39,
	GCU_REC_GRAPH = 51, /* GRAPH_TRACE: a whole launch of a graph */
	GCU_REC_KINDS = 52, /* numbers from here on are not known */
};

/* Offsets of fields, by kind of record. */
enum {
	KERNEL_START = 16,
	KERNEL_END = 24,
	KERNEL_DEVICE = 40,
	KERNEL_CONTEXT = 44,
	KERNEL_STREAM = 48,
	KERNEL_CORRELATION = 92,
	KERNEL_NAME = 104,
	KERNEL_NODE = 144,
	KERNEL_GRAPH = 156,

	COPY_KIND = 4,
	COPY_BYTES = 8, /* of copies and fills alike, as are the next six */
	COPY_START = 16,
	COPY_END = 24,
	COPY_DEVICE = 32,
	COPY_CONTEXT = 36,
	COPY_STREAM = 40,
	COPY_CORRELATION = 44,
	COPY_NODE = 64,
	COPY_GRAPH = 72,

	API_CALLBACK = 4,
	API_START = 8,
	API_END = 16,
	API_PROCESS = 24,
	API_THREAD = 28,
	API_CORRELATION = 32,

	SYNC_TYPE = 4,
	SYNC_START = 8,
	SYNC_END = 16,
	SYNC_CORRELATION = 24,
	SYNC_CONTEXT = 28,
	SYNC_STREAM = 32,
	SYNC_EVENT = 36,

	GRAPH_CORRELATION = 4,
	GRAPH_START = 8,
	GRAPH_END = 16,
	GRAPH_DEVICE = 24,
	GRAPH_ID = 28,
	GRAPH_CONTEXT = 32,
	GRAPH_STREAM = 36,

	OVERHEAD_START = 24,
	OVERHEAD_END = 32,
};

/* Lengths of records in bytes: of what changed, and what never did. */
struct gcu_lengths {
	uint32_t from, to; /* cuptiGetVersion */
	uint16_t kernel, copy, fill, sync, overhead, graph;
};

enum { API_BYTES = 40, EXTERNAL_BYTES = 24 };

/*
 * sizeof over the headers of 12.2 to 13.5, and what cuptiActivityGetNextRecord steps by in the
 * libraries of 12.2 to 13.1. Version 18 is 11.8, 12.0 and 12.1, with kernels of two lengths.
 */
static const struct gcu_lengths GCU_LENGTHS[] = {
	{ 20, 20, 208, 88, 88, 40, 40, 48 },	       /* 12.2 */
	{ 21, 21, 208, 88, 88, 40, 48, 56 },	       /* 12.3 */
	{ 22, 24, 208, 88, 88, 40, 56, 56 },	       /* 12.4 to 12.6 */
	{ 26, 28, 208, 96, 88, 56, 56, 56 },	       /* 12.8, 12.9 */
	{ 130000, 130001, 216, 96, 88, 56, 56, 56 },   /* 13.0 */
	{ 130100, 130202, 224, 96, 88, 56, 56, 56 },   /* 13.1, 13.2 */
	{ 130300, 130301, 232, 96, 88, 56, 56, 56 },   /* 13.3 */
	{ 130400, 130500, 248, 112, 104, 56, 56, 56 }, /* 13.4, 13.5 */
};

/* Of a stream or an event of a synchronisation: none (CUPTI_SYNCHRONIZATION_INVALID_VALUE). */
#define GCU_NONE_U32 0xffffffffu
#define GCU_NONE_U64 0xffffffffffffffffull

#endif
