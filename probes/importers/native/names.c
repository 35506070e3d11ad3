/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <stdlib.h>
#include <string.h>

/* Texts may be made to collide; so many are looked at, and no more. */
#define MAX_PROBES 32
#define FIRST_ROOM_BYTES (1u << 16)

static uint32_t hash_of(const uint8_t *text, uint32_t size)
{
	const uint64_t factor = 0x9e3779b97f4a7c15u;
	uint64_t hash = size, word;

	for (; size >= 8; size -= 8, text += 8) {
		memcpy(&word, text, 8);
		hash = (hash ^ word) * factor;
		hash ^= hash >> 32;
	}
	word = 0;
	memcpy(&word, text, size);
	hash = (hash ^ word) * factor;
	return (uint32_t)(hash >> 32);
}

static int make_room(struct names *names, uint32_t size)
{
	uint32_t room = names->room_bytes ? names->room_bytes : FIRST_ROOM_BYTES;
	uint8_t *text;

	if (size > MAX_NAME_BYTES - names->used_bytes)
		return -1;
	while (room < names->used_bytes + size)
		room *= 2;
	if (room == names->room_bytes)
		return 0;
	text = realloc(names->text, room);
	if (!text)
		return -1;
	names->text = text;
	names->room_bytes = room;
	return 0;
}

int64_t names_number(struct names *names, const uint8_t *text, uint32_t size)
{
	const uint32_t hash = hash_of(text, size);

	for (uint32_t probe = 0; probe < MAX_PROBES; probe++) {
		uint32_t *slot = &names->slots[(hash + probe) & (NAME_SLOTS - 1)];
		const uint32_t number = *slot - 1;
		uint32_t begin;

		if (*slot == 0) {
			if (names->count == MAX_NAMES || make_room(names, size))
				return -1;
			memcpy(names->text + names->used_bytes, text, size);
			names->used_bytes += size;
			names->ends[names->count] = names->used_bytes;
			names->hashes[names->count] = hash;
			*slot = ++names->count;
			return names->count - 1;
		}
		begin = number ? names->ends[number - 1] : 0;
		if (names->hashes[number] == hash && names->ends[number] - begin == size &&
		    !memcmp(names->text + begin, text, size))
			return number;
	}
	return -1;
}
