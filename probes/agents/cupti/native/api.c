/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What probes/agents/cupti/shim.py calls, through ctypes and without the interpreter's lock. One
 * caller at a time, but gcu_seen may be read by anybody. After a fork the child begins anew.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gcu.h"

int gcu_cupti_open(const char *path, char *why, uint32_t size);
uint32_t gcu_cupti_version(void);
int gcu_cupti_begin(uint32_t what, char *why, uint32_t size);
void gcu_cupti_end(void);
void gcu_cupti_flush(int all);
void gcu_cupti_reset(void);
int gcu_cupti_layout(const char *path, char *why, uint32_t size);

enum { CLOSED, OPEN };
static int state;
static int watched; /* forks are */
#ifdef GCU_TEST
/* Test builds: without a library there is nothing to tell to record; what a begin answers. */
static int path_given, test_refusal;
#endif

static void in_child(void)
{
	gcu_buffers_reset();
	gcu_rows_reset();
	gcu_names_forget();
	gcu_cupti_reset();
	memset(&gcu_seen, 0, sizeof(gcu_seen));
	state = CLOSED;
}

/* Limits that keep a wrong setting from taking the machine's memory. */
static int sane(const struct gcu_settings *set)
{
	return set->buffer_bytes >= 4096 && set->buffer_bytes <= 64u << 20 && set->buffers >= 2 &&
	       set->buffers <= 1024 && set->chunks >= GCU_KIND_COUNT && set->chunks <= 4096;
}

/* Opens the agent for the CUPTI at `path`; 0, or a code with `why`. */
GCU_PUBLIC int gcu_open(const struct gcu_settings *set, const char *path, char *why, uint32_t size)
{
	int failed;

	if (state == OPEN || !sane(set)) {
		snprintf(why, size, "%s", state == OPEN ? "it is open" : "settings out of range");
		return 6;
	}
#ifdef GCU_TEST
	path_given = path != NULL;
	failed = path ? gcu_cupti_open(path, why, size) : gcu_lengths_for(set->version) ? 2 : 0;
#else
	failed = gcu_cupti_open(path, why, size);
#endif
	if (failed)
		return failed;
	if (!watched) {
		pthread_atfork(NULL, NULL, in_child);
		watched = 1;
	}
	memset(&gcu_seen, 0, sizeof(gcu_seen));
	if (gcu_rows_open(set->chunks) || gcu_buffers_open(set->buffer_bytes, set->buffers)) {
		gcu_rows_close();
		snprintf(why, size, "no memory for %u buffers of %u bytes", set->buffers,
			 set->buffer_bytes);
		return 4;
	}
	state = OPEN;
	return 0;
}

GCU_PUBLIC uint32_t gcu_version(void)
{
	return gcu_cupti_version();
}

GCU_PUBLIC int gcu_layout(const char *path, char *why, uint32_t size)
{
	return gcu_cupti_layout(path, why, size);
}

GCU_PUBLIC int gcu_begin(uint32_t what, char *why, uint32_t size)
{
#ifdef GCU_TEST
	if (!path_given)
		return test_refusal;
#endif
	return state == OPEN ? gcu_cupti_begin(what, why, size) : 6;
}

GCU_PUBLIC void gcu_end(void)
{
	if (state == OPEN)
		gcu_cupti_end();
}

GCU_PUBLIC void gcu_flush(int all)
{
	if (state == OPEN)
		gcu_cupti_flush(all);
}

GCU_PUBLIC void gcu_counted(struct gcu_counts *out)
{
	const uint64_t *from = (const uint64_t *)&gcu_seen;
	uint64_t *to = (uint64_t *)out;

	for (size_t i = 0; i < sizeof(*out) / sizeof(*to); i++)
		to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
}

/*
 * Ends the window and the thread. Memory that CUPTI may still write to is kept: a buffer that is
 * lent out cannot be taken back, so the pool stays for the next time unless none is lent.
 */
GCU_PUBLIC int gcu_close(void)
{
	if (state != OPEN)
		return 0;
	gcu_cupti_end();
	if (gcu_buffers_close())
		return 5;
	gcu_rows_close();
	gcu_names_forget();
	state = CLOSED;
	return 0;
}

#ifdef GCU_TEST
/* The two callbacks as CUPTI would make them, for buffers made by hand. */
GCU_PUBLIC void gcu_test_wanted(uint8_t **buffer, size_t *size)
{
	size_t most;

	gcu_buffer_wanted(buffer, size, &most);
}

GCU_PUBLIC void gcu_test_filled(uint8_t *buffer, size_t size)
{
	gcu_buffer_filled(buffer, size);
}

GCU_PUBLIC void gcu_test_refuse(int code)
{
	test_refusal = code;
}

GCU_PUBLIC void gcu_test_drain(void)
{
	gcu_buffers_drain();
}

GCU_PUBLIC void gcu_test_clock(int64_t offset_ns)
{
	gcu_clock_set(offset_ns);
}
#endif
