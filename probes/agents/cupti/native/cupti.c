/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI itself: the library that is already in the process, its functions by name, and windows in
 * which it records. Everything here is called from the sender's thread, one call at a time.
 *
 * Record kinds, attributes and result codes are numbers of cupti_activity.h and cupti_result.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "callbacks.gen.h"
#include "gcu.h"
#include "records.h"

typedef int (*fn_version)(uint32_t *);
typedef int (*fn_callbacks)(void *, void *);
typedef int (*fn_kind)(int);
typedef int (*fn_flush)(uint32_t);
typedef int (*fn_time)(uint64_t *);
typedef int (*fn_timer)(void *);
typedef int (*fn_call)(uint32_t, uint8_t);
typedef int (*fn_subscribe)(void **, void *, void *);
typedef int (*fn_unsubscribe)(void *);
typedef int (*fn_dropped)(void *, uint32_t, size_t *);
typedef int (*fn_text)(int, const char **);

static struct {
	fn_version version;
	fn_callbacks callbacks;
	fn_kind enable, disable, thread_ids;
	fn_flush flush;
	fn_time time;
	fn_timer timer;
	fn_call runtime_call, driver_call; /* from 12.5 on; NULL before */
	fn_subscribe subscribe;
	fn_unsubscribe unsubscribe;
	fn_dropped dropped;
	fn_text text;
} cupti;

static void *subscriber;
static uint32_t version;
static int registered, own_clock, recording;
static int64_t last_offset_ns, last_pair_ns, last_width_ns;

enum {
	GCU_OK = 0,
	GCU_NO_LIBRARY = 1,
	GCU_UNKNOWN_VERSION = 2,
	GCU_NO_FUNCTION = 3,
	GCU_NO_MEMORY = 4,
	GCU_BUSY = 5,	 /* another tool has subscribed */
	GCU_REFUSED = 6, /* CUPTI said no */
	GCU_LAYOUT = 7,
};

/* What a window records: bits, as in probes/agents/cupti/shim.py. */
enum {
	GCU_WINDOW_GRAPHS = 1, /* each launch of a graph as a whole */
	GCU_WINDOW_NODES = 2,  /* each kernel in a graph */
	GCU_WINDOW_SYNCS = 4,
	GCU_WINDOW_CALLS = 8,
};

/* From this version on kernels' times are right with a timestamp callback (release notes 13.1). */
#define CALLBACK_CLOCK_FROM 130100

/* Pairs of readings in a burst, and how fast clocks may part: 500 ppm is what NTP slews by. */
#define PAIRS 64
#define DRIFT_PPM 500

static void say(char *why, uint32_t size, const char *what, int result)
{
	const char *told = NULL;

	if (cupti.text && result)
		cupti.text(result, &told);
	snprintf(why, size, "%s%s%s", what, told ? ": " : "", told ? told : "");
}

static uint64_t monotonic(void)
{
	return (uint64_t)gcu_monotonic_ns();
}

/* CUPTI's own clock where nobody gave it another. */
static uint64_t realtime(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* One burst: the narrowest pair gives the offset, all of them go on record. */
static int pair_clocks(void)
{
	int64_t best_width = INT64_MAX, best_middle = 0, offset = 0;
	struct gcu_clock_pair row = { 0 };

	gcu_rows_lock();
	row.clock = gcu_names_add("cupti");
	gcu_rows_unlock();
	for (int i = 0; i < PAIRS; i++) {
		int64_t before = gcu_monotonic_ns(), after;
		uint64_t other;

		if (cupti.time(&other))
			return -1;
		after = gcu_monotonic_ns();
		row.t_ns = before + (after - before) / 2;
		row.width_ns = after - before;
		row.other = other;
		gcu_rows_lock();
		gcu_put_clock_pair(&row);
		gcu_rows_unlock();
		if (after - before < best_width) {
			best_width = after - before;
			best_middle = row.t_ns;
			offset = row.t_ns - (int64_t)other;
		}
	}
	if (last_pair_ns) {
		int64_t moved = offset - last_offset_ns;
		int64_t allowed = best_width + last_width_ns +
				  (best_middle - last_pair_ns) / 1000000 * DRIFT_PPM + 1000;

		if (moved > allowed || moved < -allowed)
			gcu_count(clock_steps, 1);
	}
	last_offset_ns = offset;
	last_pair_ns = best_middle;
	last_width_ns = best_width;
	gcu_clock_set(offset);
	return 0;
}

static void *function(void *library, const char *name)
{
	return dlsym(library, name);
}

/* Finds the functions; the two that came late may be missing. */
static const char *find(void *library)
{
	static const struct {
		const char *name;
		void *where;
	} needed[] = {
		{ "cuptiGetVersion", &cupti.version },
		{ "cuptiActivityRegisterCallbacks", &cupti.callbacks },
		{ "cuptiActivityEnable", &cupti.enable },
		{ "cuptiActivityDisable", &cupti.disable },
		{ "cuptiSetThreadIdType", &cupti.thread_ids },
		{ "cuptiActivityFlushAll", &cupti.flush },
		{ "cuptiGetTimestamp", &cupti.time },
		{ "cuptiActivityRegisterTimestampCallback", &cupti.timer },
		{ "cuptiSubscribe", &cupti.subscribe },
		{ "cuptiUnsubscribe", &cupti.unsubscribe },
		{ "cuptiActivityGetNumDroppedRecords", &cupti.dropped },
		{ "cuptiGetResultString", &cupti.text },
	};

	for (size_t i = 0; i < sizeof(needed) / sizeof(*needed); i++) {
		void *found = function(library, needed[i].name);

		if (!found)
			return needed[i].name;
		memcpy(needed[i].where, &found, sizeof(found));
	}
	*(void **)&cupti.runtime_call = function(library, "cuptiActivityEnableRuntimeApi");
	*(void **)&cupti.driver_call = function(library, "cuptiActivityEnableDriverApi");
	return NULL;
}

/*
 * Finds CUPTI in this process and makes ready, without telling it anything yet. `path` is the
 * library as it is mapped here; it is not loaded when it is not.
 */
int gcu_cupti_open(const char *path, char *why, uint32_t size)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	const char *missing;
	int result;

	memset(&cupti, 0, sizeof(cupti));
	if (!library) {
		snprintf(why, size, "CUPTI is not in this process");
		return GCU_NO_LIBRARY;
	}
	missing = find(library);
	if (missing) {
		snprintf(why, size, "this CUPTI has no %s", missing);
		return GCU_NO_FUNCTION;
	}
	result = cupti.version(&version);
	if (result) {
		say(why, size, "CUPTI does not tell its version", result);
		return GCU_REFUSED;
	}
	if (gcu_lengths_for(version)) {
		snprintf(why, size, "CUPTI's version %u is not known to this release", version);
		return GCU_UNKNOWN_VERSION;
	}
	registered = own_clock = recording = 0;
	last_pair_ns = 0;
	return GCU_OK;
}

uint32_t gcu_cupti_version(void)
{
	return version;
}

static void on_wanted(uint8_t **buffer, size_t *size, size_t *most)
{
	gcu_buffer_wanted(buffer, size, most);
}

static void on_filled(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	(void)context;
	(void)stream;
	(void)size;
	gcu_buffer_filled(buffer, valid);
}

/* A subscription must name a function; nothing is subscribed to, so it is never called. */
static void on_callback(void *data, int domain, uint32_t callback, const void *info)
{
	(void)data;
	(void)domain;
	(void)callback;
	(void)info;
}

static int begin_clock(void)
{
	own_clock = version >= CALLBACK_CLOCK_FROM && !cupti.timer((void *)monotonic);
	if (!own_clock)
		return pair_clocks();
	gcu_clock_set(0);
	return 0;
}

/* The calls that matter where CUPTI can tell them apart, else all. */
static int enable_calls(void)
{
	int result = 0;

	if (!cupti.runtime_call || !cupti.driver_call) {
		result = cupti.enable(GCU_REC_RUNTIME);
		return result ? result : cupti.enable(GCU_REC_DRIVER);
	}
	for (uint32_t i = 0; i < GCU_RUNTIME_NAMES; i++)
		if (gcu_runtime_names[i])
			cupti.runtime_call(i, 1);
	for (uint32_t i = 0; i < GCU_DRIVER_NAMES; i++)
		if (gcu_driver_names[i])
			cupti.driver_call(i, 1);
	return result;
}

/*
 * A callback cannot be taken back. Whoever comes next and sets none, such as older profilers of
 * PyTorch, takes records to be in the clock that CUPTI has by itself.
 */
static void end_clock(void)
{
	if (own_clock)
		cupti.timer((void *)realtime);
	own_clock = 0;
}

static void disable_all(void)
{
	static const int kinds[] = { GCU_REC_KERNEL,   GCU_REC_MEMCPY, GCU_REC_MEMSET,
				     GCU_REC_SYNC,     GCU_REC_GRAPH,  GCU_REC_DRIVER,
				     GCU_REC_OVERHEAD, GCU_REC_RUNTIME };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		cupti.disable(kinds[i]);
	if (!cupti.runtime_call || !cupti.driver_call)
		return;
	for (uint32_t i = 0; i < GCU_RUNTIME_NAMES; i++)
		if (gcu_runtime_names[i])
			cupti.runtime_call(i, 0);
	for (uint32_t i = 0; i < GCU_DRIVER_NAMES; i++)
		if (gcu_driver_names[i])
			cupti.driver_call(i, 0);
}

static int enable(uint32_t what)
{
	int result = cupti.enable(GCU_REC_KERNEL);

	if (!result)
		result = cupti.enable(GCU_REC_MEMCPY);
	if (!result)
		result = cupti.enable(GCU_REC_MEMSET);
	if (!result && what & GCU_WINDOW_GRAPHS && !(what & GCU_WINDOW_NODES))
		result = cupti.enable(GCU_REC_GRAPH);
	if (!result && what & GCU_WINDOW_SYNCS)
		result = cupti.enable(GCU_REC_SYNC);
	if (!result && what & GCU_WINDOW_CALLS)
		result = enable_calls();
	if (!result)
		cupti.enable(GCU_REC_OVERHEAD); /* nice to have */
	return result;
}

/* Begins a window. Nothing is left behind when it cannot. */
int gcu_cupti_begin(uint32_t what, char *why, uint32_t size)
{
	int result;

	if (recording)
		return GCU_OK;
	/* A subscription keeps others out and shows who is there: one tool at a time. */
	result = cupti.subscribe(&subscriber, (void *)on_callback, NULL);
	if (result) {
		subscriber = NULL;
		say(why, size, "CUPTI is in use or does not work here", result);
		return GCU_BUSY;
	}
	cupti.thread_ids(1); /* CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM: as gettid() */
	result = cupti.callbacks((void *)on_wanted, (void *)on_filled);
	if (!result)
		result = begin_clock();
	if (!result)
		result = enable(what);
	if (result) {
		say(why, size, "CUPTI refuses to record", result);
		disable_all();
		end_clock();
		cupti.unsubscribe(subscriber);
		subscriber = NULL;
		return GCU_REFUSED;
	}
	recording = registered = 1;
	return GCU_OK;
}

static void count_dropped(void)
{
	size_t dropped = 0;

	/* Per context and stream the count is of that queue; NULL and 0 is the global one. */
	if (!cupti.dropped(NULL, 0, &dropped) && dropped)
		gcu_count(cupti_dropped, dropped);
}

/* Brings what CUPTI has to the rows; `all`: also buffers that are not full. */
void gcu_cupti_flush(int all)
{
	if (!registered)
		return;
	if (recording && !own_clock)
		pair_clocks();
	cupti.flush(all ? 1 : 0); /* CUPTI_ACTIVITY_FLAG_FLUSH_FORCED */
	count_dropped();
	gcu_buffers_drain();
}

/* Ends a window: what was under way still comes, then CUPTI is somebody else's. */
void gcu_cupti_end(void)
{
	if (!recording)
		return;
	disable_all();
	gcu_cupti_flush(1);
	recording = 0;
	end_clock();
	cupti.unsubscribe(subscriber);
	subscriber = NULL;
}

/* In a forked child CUPTI does not work: forget it. */
void gcu_cupti_reset(void)
{
	memset(&cupti, 0, sizeof(cupti));
	subscriber = NULL;
	registered = recording = 0;
}

/*
 * Whether the library steps over records as the table says; asked of versions only that answer
 * without a driver (up to 13.1), else when a driver is there.
 */
int gcu_cupti_layout(const char *path, char *why, uint32_t size)
{
	typedef int (*fn_next)(uint8_t *, size_t, uint8_t **);
	static const uint32_t kinds[] = { GCU_REC_KERNEL,   GCU_REC_MEMCPY,  GCU_REC_MEMSET,
					  GCU_REC_DRIVER,   GCU_REC_RUNTIME, GCU_REC_SYNC,
					  GCU_REC_OVERHEAD, GCU_REC_GRAPH,   GCU_REC_EXTERNAL };
	void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	fn_next next;
	static uint8_t buffer[4096] __attribute__((aligned(8)));

	if (!library)
		return GCU_NO_LIBRARY;
	*(void **)&next = function(library, "cuptiActivityGetNextRecord");
	if (!next)
		return GCU_NO_FUNCTION;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		uint8_t *first = NULL, *second;

		for (size_t at = 0; at < sizeof(buffer); at += 8)
			memcpy(buffer + at, &kinds[i], sizeof(kinds[i]));
		if (next(buffer, sizeof(buffer), &first))
			return GCU_REFUSED;
		second = first;
		if (next(buffer, sizeof(buffer), &second))
			return GCU_REFUSED;
		if ((uint32_t)(second - first) != gcu_length_of(kinds[i])) {
			snprintf(why, size, "records of kind %u are %td bytes long, not %u",
				 kinds[i], second - first, gcu_length_of(kinds[i]));
			return GCU_LAYOUT;
		}
	}
	return GCU_OK;
}
