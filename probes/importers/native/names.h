/* SPDX-License-Identifier: Apache-2.0 */
/* Texts with numbers: each distinct one once, from 0. */
#ifndef GPUCORRELATE_NAMES_H
#define GPUCORRELATE_NAMES_H

#include <stdint.h>

/* So many texts have numbers at most, and so many bytes; it is told of no more than that. */
#define MAX_NAMES (1u << 15)
#define MAX_NAME_BYTES (1u << 24)
#define NAME_SLOTS (4 * MAX_NAMES)

struct names {
	uint32_t count, used_bytes, room_bytes;
	uint8_t *text;		  /* one after another */
	uint32_t ends[MAX_NAMES]; /* of each, in text */
	uint32_t hashes[MAX_NAMES];
	uint32_t slots[NAME_SLOTS]; /* number plus 1 */
};

/* The number of a text; -1: there is no room, or too many others share its slot. */
int64_t names_number(struct names *names, const uint8_t *text, uint32_t size_bytes);

#endif
