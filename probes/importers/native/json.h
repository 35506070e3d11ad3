/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON (RFC 8259) in a buffer that may end anywhere, passed over without being decoded.
 *
 * Every function takes a place and the buffer's end and gives the place after what it read:
 * STARVED where the buffer ends before it does, DOUBT where it is no JSON, or nested deeper than
 * is counted here. Nothing is read at or beyond the end. That bytes are UTF-8 is not looked at.
 */
#ifndef GPUCORRELATE_JSON_H
#define GPUCORRELATE_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef const uint8_t *place;

static const uint8_t json_marks[2];
#define STARVED (&json_marks[0])
#define DOUBT (&json_marks[1])

#define MAX_DEPTH 64

static inline bool stopped(place p)
{
	return p == STARVED || p == DOUBT;
}

static inline place json_space(place p, place end)
{
	while (p < end && *p <= ' ' && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
		p++;
	return p;
}

static inline bool json_special(uint8_t c)
{
	return c == '"' || c == '\\' || c < 0x20;
}

/* The first quote, backslash or control character, or the end; byte by byte. */
static inline place json_plain_bytes(place p, place end)
{
	while (p < end && !json_special(*p))
		p++;
	return p;
}

/* The same. */
static inline place json_plain(place p, place end)
{
#ifdef __SSE2__
	const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
	const __m128i control = _mm_set1_epi8(0x1f);

	for (; end - p >= 16; p += 16) {
		const __m128i text = _mm_loadu_si128((const __m128i *)(const void *)p);
		const __m128i found = _mm_or_si128(
			_mm_or_si128(_mm_cmpeq_epi8(text, quote), _mm_cmpeq_epi8(text, slash)),
			_mm_cmpeq_epi8(_mm_min_epu8(text, control), text));
		const unsigned int mask = (unsigned int)_mm_movemask_epi8(found);

		if (mask)
			return p + __builtin_ctz(mask);
	}
#else
	const uint64_t ones = 0x0101010101010101u;

	for (; end - p >= 8; p += 8) {
		uint64_t text, quote, slash;

		memcpy(&text, p, 8);
		quote = text ^ (ones * '"');
		slash = text ^ (ones * '\\');
		/* a byte that is 0 in quote or slash, or below 0x20 in text, leaves its top bit */
		if ((((quote - ones) & ~quote) | ((slash - ones) & ~slash) |
		     ((text - ones * 0x20) & ~text)) &
		    (ones << 7))
			break;
	}
#endif
	return json_plain_bytes(p, end);
}

static inline bool json_hex(uint8_t c)
{
	return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

/* The quote that closes a string with escapes, from one of them or what else is at p. */
static inline place json_after_escapes(place p, place end)
{
	for (;;) {
		if (p == end)
			return STARVED;
		if (*p == '"')
			return p;
		if (*p != '\\')
			return DOUBT;
		if (end - p < 6)
			return STARVED;
		if (p[1] == 'u') {
			if (!(json_hex(p[2]) && json_hex(p[3]) && json_hex(p[4]) && json_hex(p[5])))
				return DOUBT;
			p += 6;
		} else if (p[1] && strchr("\"\\/bfnrt", p[1])) {
			p += 2;
		} else {
			return DOUBT;
		}
		p = json_plain(p, end);
	}
}

/* The quote that closes a string whose opening one lies before p. */
static inline place json_closing(place p, place end, bool *escaped)
{
	p = json_plain(p, end);
	if (p < end && *p == '"')
		return p;
	*escaped = true;
	return json_after_escapes(p, end);
}

static inline place json_digits(place p, place end)
{
	const place first = p;

	while (p < end && *p >= '0' && *p <= '9')
		p++;
	return p == end ? STARVED : p == first ? DOUBT : p;
}

static inline place json_number(place p, place end)
{
	if (*p == '-' && ++p == end)
		return STARVED;
	if (*p == '0') {
		if (++p == end)
			return STARVED;
	} else {
		p = json_digits(p, end);
		if (stopped(p))
			return p;
	}
	if (*p == '.') {
		p = json_digits(p + 1, end);
		if (stopped(p))
			return p;
	}
	if (*p == 'e' || *p == 'E') {
		if (++p == end)
			return STARVED;
		if ((*p == '+' || *p == '-') && ++p == end)
			return STARVED;
		p = json_digits(p, end);
	}
	return p;
}

static inline place json_literal(place p, place end, const char *word, size_t size)
{
	if ((size_t)(end - p) < size)
		return STARVED;
	return memcmp(p, word, size) ? DOUBT : p + size;
}

/* A string, number or word that begins at p. */
static inline place json_scalar(place p, place end, bool *escaped)
{
	switch (*p) {
	case '"':
		p = json_closing(p + 1, end, escaped);
		return stopped(p) ? p : p + 1;
	case 't':
		return json_literal(p, end, "true", 4);
	case 'f':
		return json_literal(p, end, "false", 5);
	case 'n':
		return json_literal(p, end, "null", 4);
	default:
		return json_number(p, end);
	}
}

/* A key with its colon, and the space behind that: the value begins there. */
static inline place json_key(place p, place end, place *closing, bool *escaped)
{
	if (p == end)
		return STARVED;
	if (*p != '"')
		return DOUBT;
	p = json_closing(p + 1, end, escaped);
	if (stopped(p))
		return p;
	*closing = p;
	p = json_space(p + 1, end);
	if (p == end)
		return STARVED;
	if (*p != ':')
		return DOUBT;
	p = json_space(p + 1, end);
	return p == end ? STARVED : p;
}

/* An object or a list, whatever is in it. */
static inline place json_nested(place p, place end)
{
	uint64_t objects = 0; /* the lowest bit is the innermost bracket's */
	unsigned int depth = 0;
	bool escaped;
	place closing;

	for (;;) {
		/* a value begins at p */
		if (*p == '{' || *p == '[') {
			const uint8_t close = *p == '{' ? '}' : ']';

			if (depth == MAX_DEPTH)
				return DOUBT;
			depth++;
			objects = objects << 1 | (*p == '{');
			p = json_space(p + 1, end);
			if (p == end)
				return STARVED;
			if (*p != close) {
				if (objects & 1)
					p = json_key(p, end, &closing, &escaped);
				if (stopped(p))
					return p;
				continue;
			}
		} else {
			p = json_scalar(p, end, &escaped);
			if (stopped(p))
				return p;
			p = json_space(p, end);
		}
		/* a value ended before p, or an empty one ends at p */
		while (p < end && *p == (objects & 1 ? '}' : ']')) {
			p++;
			objects >>= 1;
			if (--depth == 0)
				return p;
			p = json_space(p, end);
		}
		if (p == end)
			return STARVED;
		if (*p != ',')
			return DOUBT;
		p = json_space(p + 1, end);
		if (p == end)
			return STARVED;
		if (objects & 1) {
			p = json_key(p, end, &closing, &escaped);
			if (stopped(p))
				return p;
		}
	}
}

/* Any value that begins at p. */
static inline place json_value(place p, place end, bool *escaped)
{
	return *p == '{' || *p == '[' ? json_nested(p, end) : json_scalar(p, end, escaped);
}

#endif
