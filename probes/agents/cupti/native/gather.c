/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI's records to rows. Only kinds that were switched on can be in a buffer; should another one
 * be there, its length is not known and the rest of the buffer is counted as unread.
 */
#include <string.h>
#include <unistd.h>

#include "gcu.h"
#include "records.h"

/* Contexts of a process whose device is known; a worker has one, seldom two. */
#define CONTEXTS 64

struct gcu_counts gcu_seen;

static uint16_t lengths[GCU_REC_KINDS];
static int64_t offset_ns;
static struct {
	uint32_t context, device;
} contexts[CONTEXTS];
static uint32_t contexts_used;

int gcu_lengths_for(uint32_t version)
{
	const struct gcu_lengths *row = GCU_LENGTHS,
				 *end = row + sizeof(GCU_LENGTHS) / sizeof(*row);

	while (row < end && (version < row->from || version > row->to))
		row++;
	if (row == end)
		return -1;
	memset(lengths, 0, sizeof(lengths));
	lengths[GCU_REC_KERNEL] = row->kernel;
	lengths[GCU_REC_MEMCPY] = row->copy;
	lengths[GCU_REC_MEMSET] = row->fill;
	lengths[GCU_REC_DRIVER] = lengths[GCU_REC_RUNTIME] = API_BYTES;
	lengths[GCU_REC_SYNC] = row->sync;
	lengths[GCU_REC_EXTERNAL] = EXTERNAL_BYTES;
	lengths[GCU_REC_OVERHEAD] = row->overhead;
	lengths[GCU_REC_GRAPH] = row->graph;
	return 0;
}

uint32_t gcu_length_of(uint32_t kind)
{
	return kind < GCU_REC_KINDS ? lengths[kind] : 0;
}

void gcu_clock_set(int64_t offset)
{
	__atomic_store_n(&offset_ns, offset, __ATOMIC_RELAXED);
}

static uint32_t u32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static uint64_t u64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* A time of a record; 0 is none and stays none. */
static int64_t when(const uint8_t *at, int64_t offset)
{
	uint64_t raw = u64(at);

	return raw ? (int64_t)(raw + (uint64_t)offset) : 0;
}

static void learn(uint32_t context, uint32_t device)
{
	for (uint32_t i = 0; i < contexts_used; i++) {
		if (contexts[i].context == context) {
			contexts[i].device = device;
			return;
		}
	}
	if (contexts_used < CONTEXTS) {
		contexts[contexts_used].context = context;
		contexts[contexts_used++].device = device;
	}
}

/* Synchronisations do not say on which device; what ran in their context does. */
static uint32_t device_of(uint32_t context)
{
	for (uint32_t i = 0; i < contexts_used; i++)
		if (contexts[i].context == context)
			return contexts[i].device;
	return 0;
}

static void kernel(const uint8_t *at, uint32_t pid, int64_t offset)
{
	struct gcu_gpu_op row = {
		.pid = pid,
		.device = u32(at + KERNEL_DEVICE),
		.context = u32(at + KERNEL_CONTEXT),
		.gpu_stream = u32(at + KERNEL_STREAM),
		.op = GCU_OP_KERNEL,
		.name = gcu_names_add((const char *)(uintptr_t)u64(at + KERNEL_NAME)),
		.correlation = u32(at + KERNEL_CORRELATION),
		.graph = u32(at + KERNEL_GRAPH),
		.graph_node = u64(at + KERNEL_NODE),
		.start_ns = when(at + KERNEL_START, offset),
		.end_ns = when(at + KERNEL_END, offset),
	};

	learn(row.context, row.device);
	gcu_put_gpu_op(&row);
}

static uint32_t copy_name(uint8_t copy)
{
	static const char *const names[] = {
		"Memcpy UNKNOWN", "Memcpy HTOD", "Memcpy DTOH", "Memcpy HTOA",
		"Memcpy ATOH",	  "Memcpy ATOA", "Memcpy ATOD", "Memcpy DTOA",
		"Memcpy DTOD",	  "Memcpy HTOH", "Memcpy PTOP",
	};

	return gcu_names_add(names[copy < sizeof(names) / sizeof(*names) ? copy : 0]);
}

/* A copy or a fill: the same fields in the same places. */
static void copy(const uint8_t *at, uint32_t pid, int64_t offset, int fill)
{
	struct gcu_gpu_op row = {
		.pid = pid,
		.device = u32(at + COPY_DEVICE),
		.context = u32(at + COPY_CONTEXT),
		.gpu_stream = u32(at + COPY_STREAM),
		.op = fill ? GCU_OP_MEMSET : GCU_OP_MEMCPY,
		.name = fill ? gcu_names_add("Memset") : copy_name(at[COPY_KIND]),
		.correlation = u32(at + COPY_CORRELATION),
		.graph = u32(at + COPY_GRAPH),
		.graph_node = u64(at + COPY_NODE),
		.start_ns = when(at + COPY_START, offset),
		.end_ns = when(at + COPY_END, offset),
		.bytes = u64(at + COPY_BYTES),
		.copy = fill || at[COPY_KIND] > GCU_COPY_PTOP ? GCU_COPY_UNKNOWN : at[COPY_KIND],
	};

	learn(row.context, row.device);
	gcu_put_gpu_op(&row);
}

static void graph(const uint8_t *at, uint32_t pid, int64_t offset)
{
	struct gcu_gpu_op row = {
		.pid = pid,
		.device = u32(at + GRAPH_DEVICE),
		.context = u32(at + GRAPH_CONTEXT),
		.gpu_stream = u32(at + GRAPH_STREAM),
		.op = GCU_OP_KERNEL,
		.name = gcu_names_add("CUDA graph"),
		.correlation = u32(at + GRAPH_CORRELATION),
		.graph = u32(at + GRAPH_ID),
		.start_ns = when(at + GRAPH_START, offset),
		.end_ns = when(at + GRAPH_END, offset),
	};

	learn(row.context, row.device);
	gcu_put_gpu_op(&row);
}

static void call(const uint8_t *at, uint32_t pid, int64_t offset, int api)
{
	struct gcu_cuda_api row = {
		.pid = pid,
		.tid = u32(at + API_THREAD),
		.name = gcu_names_of_call(api, u32(at + API_CALLBACK)),
		.api = api,
		.correlation = u32(at + API_CORRELATION),
		.start_ns = when(at + API_START, offset),
		.end_ns = when(at + API_END, offset),
	};

	gcu_put_cuda_api(&row);
}

static uint64_t wide(uint32_t value)
{
	return value == GCU_NONE_U32 ? GCU_NONE_U64 : value;
}

static void synchronisation(const uint8_t *at, uint32_t pid, int64_t offset)
{
	struct gcu_gpu_sync row = {
		.pid = pid,
		.device = device_of(u32(at + SYNC_CONTEXT)),
		.context = u32(at + SYNC_CONTEXT),
		.sync = u32(at + SYNC_TYPE) > 4 ? 0 : u32(at + SYNC_TYPE),
		.gpu_stream = wide(u32(at + SYNC_STREAM)),
		.event = wide(u32(at + SYNC_EVENT)),
		.correlation = u32(at + SYNC_CORRELATION),
		.start_ns = when(at + SYNC_START, offset),
		.end_ns = when(at + SYNC_END, offset),
		.record_stream = GCU_NONE_U64,
	};

	gcu_put_gpu_sync(&row);
}

static void overhead(const uint8_t *at)
{
	uint64_t start = u64(at + OVERHEAD_START), end = u64(at + OVERHEAD_END);

	if (end > start)
		gcu_count(overhead_ns, end - start);
}

static void record(uint32_t kind, const uint8_t *at, uint32_t pid, int64_t offset)
{
	switch (kind) {
	case GCU_REC_KERNEL:
		kernel(at, pid, offset);
		break;
	case GCU_REC_MEMCPY:
		copy(at, pid, offset, 0);
		break;
	case GCU_REC_MEMSET:
		copy(at, pid, offset, 1);
		break;
	case GCU_REC_GRAPH:
		graph(at, pid, offset);
		break;
	case GCU_REC_RUNTIME:
		call(at, pid, offset, GCU_API_RUNTIME);
		break;
	case GCU_REC_DRIVER:
		call(at, pid, offset, GCU_API_DRIVER);
		break;
	case GCU_REC_SYNC:
		synchronisation(at, pid, offset);
		break;
	case GCU_REC_OVERHEAD:
		overhead(at);
		break;
	default: /* external correlation: its place is known, its use is not needed */
		break;
	}
}

/* So many records at a time, so that the sender need not wait long for its turn. */
#define RECORDS_A_TURN 1024

/* Rows of a completed buffer. */
void gcu_gather(const uint8_t *buffer, size_t size)
{
	int64_t offset = __atomic_load_n(&offset_ns, __ATOMIC_RELAXED);
	uint32_t pid = (uint32_t)getpid();
	uint64_t records = 0;
	size_t at = 0;

	gcu_rows_lock();
	while (size - at >= sizeof(uint32_t)) {
		uint32_t kind = u32(buffer + at), length = gcu_length_of(kind);

		if (!length || length > size - at)
			break;
		record(kind, buffer + at, pid, offset);
		at += length;
		if (++records % RECORDS_A_TURN == 0) {
			gcu_rows_unlock();
			gcu_rows_lock();
		}
	}
	gcu_rows_unlock();
	gcu_count(records, records);
	gcu_count(unread_bytes, size - at);
}
