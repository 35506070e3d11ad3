/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's test build under load, for the sanitizers: two threads complete buffers as CUPTI's
 * would, one takes rows as the sender does, one reads counts; then a fork, then it is closed. Ends
 * with 0 when every record is in a row that was taken or in a count.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gcu.h"

int gcu_open(const struct gcu_settings *set, const char *path, char *why, uint32_t size);
int gcu_close(void);
uint32_t gcu_take(uint32_t kind, uint32_t most, uint8_t *out);
uint32_t gcu_width(uint32_t kind);
uint32_t gcu_name(uint32_t number, char *out, uint32_t size);
uint32_t gcu_distinct(const uint32_t *column, uint32_t rows, uint32_t *out, uint32_t size);
void gcu_replace(uint32_t *column, uint32_t rows, const uint32_t *table);
void gcu_counted(struct gcu_counts *out);
void gcu_test_wanted(uint8_t **buffer, size_t *size);
void gcu_test_filled(uint8_t *buffer, size_t size);
void gcu_test_drain(void);

#define RECORD 248 /* a kernel of version 130500 */
#define ROUNDS 300
#define MOST 65536

static int over;
static uint64_t fed, taken;

static void *cupti(void *seed)
{
	unsigned state = (unsigned)(uintptr_t)seed;
	static char names[64][16];

	for (int round = 0; round < ROUNDS; round++) {
		uint8_t *buffer;
		size_t size, used = 0;
		uint32_t kind = 10;

		gcu_test_wanted(&buffer, &size);
		if (!buffer) {
			usleep(100);
			continue;
		}
		memset(buffer, 0, size);
		while (used + RECORD <= size && rand_r(&state) % 200) {
			uint64_t name = (uint64_t)(uintptr_t)names[rand_r(&state) % 64];

			memcpy(buffer + used, &kind, sizeof(kind));
			memcpy(buffer + used + 104, &name, sizeof(name));
			used += RECORD;
		}
		__atomic_fetch_add(&fed, used / RECORD, __ATOMIC_RELAXED);
		gcu_test_filled(buffer, used);
	}
	return NULL;
}

static void *sender(void *unused)
{
	static uint32_t names[GCU_NAMES], table[GCU_NAMES], column[MOST];
	uint32_t width = gcu_width(GCU_KIND_gpu_op);
	uint8_t *out = malloc((size_t)MOST * width);

	(void)unused;
	for (int last = 0; out && !last;) {
		uint32_t rows, different;
		char text[GCU_NAME_BYTES];

		last = __atomic_load_n(&over, __ATOMIC_ACQUIRE);
		rows = gcu_take(GCU_KIND_gpu_op, MOST, out);
		/* The names' column comes after pid, device, context, stream and op. */
		memcpy(column, out + (size_t)rows * 21, (size_t)rows * 4);
		different = gcu_distinct(column, rows, names, GCU_NAMES);
		for (uint32_t i = 0; i < different; i++)
			gcu_name(names[i], text, sizeof(text));
		gcu_replace(column, rows, table);
		taken += rows;
		usleep(500);
	}
	free(out);
	return NULL;
}

static void *watcher(void *unused)
{
	struct gcu_counts counts;

	(void)unused;
	while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
		gcu_counted(&counts);
		usleep(200);
	}
	return NULL;
}

/* The thread sanitizer cannot follow threads that a child starts. */
#ifdef __SANITIZE_THREAD__
static int child_works(const struct gcu_settings *set)
{
	return set != NULL;
}
#else
static int child_works(const struct gcu_settings *set)
{
	char why[64];
	int status = 1;
	pid_t child = fork();

	if (!child)
		_exit(gcu_open(set, NULL, why, sizeof(why)) || gcu_close());
	waitpid(child, &status, 0);
	return !status;
}
#endif

int main(void)
{
	struct gcu_settings set = {
		.buffer_bytes = 64 << 10, .buffers = 6, .chunks = 24, .version = 130500
	};
	struct gcu_counts counts;
	pthread_t threads[4];
	char why[64];

	for (int cycle = 0; cycle < 3; cycle++) {
		fed = taken = 0;
		over = 0;
		if (gcu_open(&set, NULL, why, sizeof(why)))
			return 1;
		pthread_create(&threads[0], NULL, cupti, (void *)1);
		pthread_create(&threads[1], NULL, cupti, (void *)2);
		pthread_create(&threads[2], NULL, sender, NULL);
		pthread_create(&threads[3], NULL, watcher, NULL);
		pthread_join(threads[0], NULL);
		pthread_join(threads[1], NULL);
		gcu_test_drain();
		__atomic_store_n(&over, 1, __ATOMIC_RELEASE);
		pthread_join(threads[2], NULL);
		pthread_join(threads[3], NULL);
		gcu_counted(&counts);
		if (!fed || counts.records != fed || counts.unread_bytes)
			return 2;
		if (taken + counts.lost_rows != fed || counts.waiting[GCU_KIND_gpu_op])
			return 3;
		if (!child_works(&set))
			return 4;
		if (gcu_close())
			return 5;
	}
	printf("%llu\n", (unsigned long long)fed);
	return 0;
}
