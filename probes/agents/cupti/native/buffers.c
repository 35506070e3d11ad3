/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool that CUPTI's buffers come from, and the thread that reads the completed ones. CUPTI
 * calls from its own threads and from the program's: both calls take a lock for a few instructions.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "gcu.h"

enum state { FREE, LENT, FILLED, READING };

struct buffer {
	uint8_t *at;
	size_t filled;
	enum state state;
};

static struct buffer *pool;
static uint8_t *memory;
static uint32_t pool_size, buffer_bytes;
static uint32_t *filled, filled_first, filled_count; /* a ring of numbers of buffers */
static int running, reading;
static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;

int64_t gcu_monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* CUPTI wants a buffer: none means that it drops what would have gone there, and counts it. */
void gcu_buffer_wanted(uint8_t **buffer, size_t *size, size_t *max_records)
{
	*buffer = NULL;
	*size = *max_records = 0;
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < pool_size && !*buffer; i++) {
		if (pool[i].state == FREE) {
			pool[i].state = LENT;
			*buffer = pool[i].at;
			*size = buffer_bytes;
		}
	}
	pthread_mutex_unlock(&lock);
	if (!*buffer)
		gcu_count(refused, 1);
}

/* CUPTI gives one back. What is none of ours is left alone: it was lent before a fork. */
void gcu_buffer_filled(uint8_t *buffer, size_t size)
{
	size_t number;

	pthread_mutex_lock(&lock);
	number = pool && buffer >= memory ? (size_t)(buffer - memory) / buffer_bytes : pool_size;
	if (number < pool_size && pool[number].at == buffer && pool[number].state == LENT) {
		gcu_count(buffers, 1);
		if (size && size <= buffer_bytes) {
			pool[number].filled = size;
			pool[number].state = FILLED;
			filled[(filled_first + filled_count++) % pool_size] = (uint32_t)number;
			pthread_cond_signal(&work);
		} else {
			pool[number].state = FREE;
			gcu_count(unread_bytes, size);
		}
	}
	pthread_mutex_unlock(&lock);
}

static void count_cpu(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	__atomic_store_n(&gcu_seen.busy_ns, (uint64_t)used.tv_sec * 1000000000 + used.tv_nsec,
			 __ATOMIC_RELAXED);
}

static void *reader(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "gpucorrelate-gp");
	pthread_mutex_lock(&lock);
	for (;;) {
		struct buffer *next;

		while (running && !filled_count)
			pthread_cond_wait(&work, &lock);
		if (!filled_count)
			break; /* told to end, and nothing left */
		next = &pool[filled[filled_first]];
		filled_first = (filled_first + 1) % pool_size;
		filled_count--;
		next->state = READING;
		reading = 1;
		pthread_mutex_unlock(&lock);
		gcu_gather(next->at, next->filled);
		count_cpu();
		pthread_mutex_lock(&lock);
		next->state = FREE;
		reading = 0;
		if (!filled_count)
			pthread_cond_broadcast(&done);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

void gcu_buffers_drain(void)
{
	pthread_mutex_lock(&lock);
	while (running && (filled_count || reading))
		pthread_cond_wait(&done, &lock);
	pthread_mutex_unlock(&lock);
}

static void release(void)
{
	if (memory)
		munmap(memory, (size_t)pool_size * buffer_bytes);
	free(pool);
	free(filled);
	memory = NULL;
	pool = NULL;
	filled = NULL;
	pool_size = filled_first = filled_count = 0;
}

int gcu_buffers_open(uint32_t bytes, uint32_t count)
{
	pthread_attr_t attributes;
	int failed;

	buffer_bytes = bytes;
	pool = calloc(count, sizeof(*pool));
	filled = calloc(count, sizeof(*filled));
	memory = mmap(NULL, (size_t)count * bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		memory = NULL;
	pool_size = count;
	if (!pool || !filled || !memory) {
		release();
		return -1;
	}
	for (uint32_t i = 0; i < count; i++)
		pool[i].at = memory + (size_t)i * bytes;
	running = 1;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256 << 10);
	failed = pthread_create(&thread, &attributes, reader, NULL);
	pthread_attr_destroy(&attributes);
	if (failed) {
		running = 0;
		release();
		return -1;
	}
	return 0;
}

/*
 * Ends the thread when it has read what is completed. Refused while CUPTI has a buffer: it may
 * write to it at any time.
 */
int gcu_buffers_close(void)
{
	int lent = 0;

	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < pool_size; i++)
		lent |= pool[i].state == LENT;
	if (lent || !running) {
		pthread_mutex_unlock(&lock);
		return lent ? -1 : 0;
	}
	running = 0;
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&lock);
	pthread_join(thread, NULL);
	pthread_mutex_lock(&lock);
	release();
	pthread_mutex_unlock(&lock);
	return 0;
}

/* In a forked child: the thread is the parent's, and so is what the locks say. */
void gcu_buffers_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&work, NULL);
	pthread_cond_init(&done, NULL);
	running = reading = 0;
	release();
}
