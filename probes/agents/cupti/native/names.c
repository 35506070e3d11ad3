/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of kernels and calls, by number. CUPTI hands out the same pointer for the same kernel, so
 * a pointer finds its number; what it points to is compared each time, because a module that was
 * unloaded gives its memory back.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "callbacks.gen.h"
#include "gcu.h"

#define SLOTS (2 * GCU_NAMES)

static char *texts[GCU_NAMES];			   /* number 0 is no name */
static uint32_t by_pointer[SLOTS], by_text[SLOTS]; /* numbers; 0 is free */
static const char *pointers[SLOTS];
static uint32_t used = 1, pointers_used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t hash_text(const char *text, size_t size)
{
	uint32_t hash = 2166136261u; /* FNV-1a */

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ (uint8_t)text[i]) * 16777619u;
	return hash;
}

static uint32_t hash_pointer(const char *at)
{
	return (uint32_t)(((uintptr_t)at >> 4) * 0x9E3779B97F4A7C15ull >> 40);
}

static int same(uint32_t number, const char *text, size_t size)
{
	return !memcmp(texts[number], text, size) && !texts[number][size];
}

static uint32_t insert(const char *text, size_t size)
{
	uint32_t at = hash_text(text, size) % SLOTS;
	char *copy;

	while (by_text[at]) {
		if (same(by_text[at], text, size))
			return by_text[at];
		at = (at + 1) % SLOTS;
	}
	copy = used < GCU_NAMES - 1 ? malloc(size + 1) : NULL;
	if (!copy) {
		gcu_count(lost_names, 1);
		return 0;
	}
	memcpy(copy, text, size);
	copy[size] = 0;
	pthread_mutex_lock(&lock);
	texts[used] = copy;
	pthread_mutex_unlock(&lock);
	by_text[at] = used;
	return used++;
}

/* Number of a name; 0 when there is none, or no room for another one. */
uint32_t gcu_names_add(const char *text)
{
	uint32_t at, number;
	size_t size;

	if (!text)
		return 0;
	size = strnlen(text, GCU_NAME_BYTES);
	at = hash_pointer(text) % SLOTS;
	while (by_pointer[at] && pointers[at] != text)
		at = (at + 1) % SLOTS;
	if (by_pointer[at] && same(by_pointer[at], text, size))
		return by_pointer[at];
	number = insert(text, size);
	/* Half full at most, so that a search ends; beyond that texts are looked up as texts. */
	if (number && (by_pointer[at] || pointers_used < GCU_NAMES)) {
		pointers_used += !by_pointer[at];
		pointers[at] = text;
		by_pointer[at] = number;
	}
	return number;
}

/* Number of an API function's name; those that are not in the table are told by their number. */
uint32_t gcu_names_of_call(int api, uint32_t callback)
{
	const char *const *names = api == GCU_API_RUNTIME ? gcu_runtime_names : gcu_driver_names;
	uint32_t count = api == GCU_API_RUNTIME ? GCU_RUNTIME_NAMES : GCU_DRIVER_NAMES;
	static char other[48];

	if (callback < count && names[callback])
		return gcu_names_add(names[callback]);
	snprintf(other, sizeof(other), "%s call %u", api == GCU_API_RUNTIME ? "runtime" : "driver",
		 callback);
	return insert(other, strlen(other));
}

/* Copies a name and says how long it is; 0 when there is none of that number. */
GCU_PUBLIC uint32_t gcu_name(uint32_t number, char *out, uint32_t size)
{
	uint32_t length = 0;

	pthread_mutex_lock(&lock);
	if (number && number < GCU_NAMES && texts[number]) {
		length = strlen(texts[number]);
		if (length > size)
			length = size;
		memcpy(out, texts[number], length);
	}
	pthread_mutex_unlock(&lock);
	return length;
}

/* Forget all names: their numbers mean nothing any more. */
void gcu_names_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	for (uint32_t i = 1; i < GCU_NAMES; i++) {
		free(texts[i]);
		texts[i] = NULL;
	}
	memset(by_pointer, 0, sizeof(by_pointer));
	memset(by_text, 0, sizeof(by_text));
	used = 1;
	pointers_used = 0;
}
