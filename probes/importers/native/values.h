/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the values of an event stand for: integers, and moments in nanoseconds.
 *
 * Each function tells whether the value is plain enough to be understood here, and no more: one
 * that is not is no error.
 */
#ifndef GPUCORRELATE_VALUES_H
#define GPUCORRELATE_VALUES_H

#include "json.h"

#define NONE_U64 UINT64_MAX
#define NONE_U32 UINT32_MAX
/* Beyond it a moment in microseconds is none in nanoseconds. */
#define MAX_MICROSECONDS 9000000000000000u

enum kind { ABSENT = 0, PLAIN, ESCAPED, NUMBER, OTHER };

struct token {
	place begin, end; /* of a text, without its quotes */
	enum kind kind;
};

/* Digits up to 19 of them, and nothing else. */
static inline bool digits(place p, place end, uint64_t *value)
{
	uint64_t sum = 0;

	if (p == end || end - p > 19 || (*p == '0' && end - p > 1))
		return false;
	for (; p < end; p++) {
		if (*p < '0' || *p > '9')
			return false;
		sum = sum * 10 + (uint64_t)(*p - '0');
	}
	*value = sum;
	return true;
}

/* An integer; one in a text may follow other words ("stream 7"). */
static inline bool integer(const struct token *token, uint64_t *value, bool *negative)
{
	place begin = token->begin;

	*negative = false;
	if (token->kind == NUMBER) {
		*negative = *begin == '-';
		return digits(begin + *negative, token->end, value);
	}
	if (token->kind != PLAIN)
		return false;
	for (place p = token->end; p > token->begin; p--)
		if (p[-1] == ' ') {
			begin = p;
			break;
		}
	return digits(begin, token->end, value);
}

/* An integer from 0; one below is as good as none. */
static inline bool natural(const struct token *token, uint64_t none, uint64_t *value)
{
	bool negative;

	*value = none;
	if (token->kind == ABSENT)
		return true;
	if (!integer(token, value, &negative))
		return false;
	if (negative && *value)
		*value = none;
	return true;
}

/* An integer that fits in 32 bits. */
static inline bool small(const struct token *token, uint32_t *value)
{
	uint64_t number = 0;
	bool negative = false;

	if (token->kind != ABSENT && !integer(token, &number, &negative))
		return false;
	*value = (uint32_t)number;
	return number <= UINT32_MAX && !negative;
}

/* The lowest 32 bits of an integer. */
static inline bool low_bits(const struct token *token, uint32_t *value)
{
	uint64_t number = 0;
	bool negative = false;

	if (token->kind != ABSENT && !integer(token, &number, &negative))
		return false;
	*value = (uint32_t)(negative ? 0 - number : number);
	return !negative || number <= (uint64_t)1 << 63;
}

static inline bool stream_waited(const struct token *token, uint64_t *value)
{
	if (!natural(token, NONE_U64, value))
		return false;
	if (*value == NONE_U32)
		*value = NONE_U64;
	return true;
}

/* Microseconds with decimals as nanoseconds; halves go to the even one. */
static inline bool nanoseconds(const struct token *token, int64_t *value)
{
	static const uint32_t units[] = { 1, 10, 100, 1000, 10000, 100000, 1000000 };
	place point, p;
	uint64_t whole;
	uint32_t thousandths = 0, rest = 0, half;
	size_t decimals, i;

	if (token->kind != NUMBER)
		return false;
	point = memchr(token->begin, '.', (size_t)(token->end - token->begin));
	p = point ? point : token->end;
	if (!digits(token->begin, p, &whole) || whole > MAX_MICROSECONDS)
		return false;
	decimals = point ? (size_t)(token->end - point - 1) : 0;
	if (decimals > 9)
		return false;
	for (i = 0; i < decimals; i++) {
		const uint8_t c = point[1 + i];

		if (c < '0' || c > '9')
			return false;
		if (i < 3)
			thousandths += (uint32_t)(c - '0') * units[2 - i];
		else
			rest = rest * 10 + (uint32_t)(c - '0');
	}
	*value = (int64_t)(whole * 1000 + thousandths);
	if (decimals > 3) {
		half = 5 * units[decimals - 4];
		*value += rest > half || (rest == half && (*value & 1));
	}
	return true;
}

#endif
