/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile bytes for the scanner of events, to be compiled with sanitizers: documents are read,
 * spoiled in all ways that come to mind, and scanned at the very end of an allocation. What the
 * scanner tells is checked against the bounds it was given.
 *
 *     scan_hostile SEED RUNS DOCUMENT...
 *
 * With LIBFUZZER it is a target of that instead, which finds its own documents.
 */
#include "events.c"

#include <stdio.h>

#define MOST_BYTES 8192
#define MOST_RECORDS 7
#define MOST_ODDS 5

#ifndef LIBFUZZER
static uint64_t state;

static size_t below(size_t limit)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (size_t)(state % limit);
}

#endif

static void check(bool held, const char *what)
{
	if (held)
		return;
	fprintf(stderr, "does not hold: %s\n", what);
	exit(1);
}

static struct word known(const char *text, uint8_t table, uint8_t kind)
{
	struct word word = { .size = (uint8_t)strlen(text), .table = table, .kind = kind };

	memcpy(word.text, text, word.size);
	return word;
}

#ifndef LIBFUZZER
static size_t spoiled(uint8_t *text, size_t size)
{
	static const char letters[] = "{}[],:\"\\ \n0-.eEutfn9X";

	for (size_t left = below(6); left && size; left--) {
		const size_t at = below(size);
		size_t gone = 1 + below(8);

		switch (below(5)) {
		case 0:
			text[at] = (uint8_t)below(256);
			break;
		case 1:
			text[at] = (uint8_t)letters[below(sizeof(letters) - 1)];
			break;
		case 2:
			gone = gone < size - at ? gone : size - at;
			memmove(text + at, text + at + gone, size - at - gone);
			size -= gone;
			break;
		case 3:
			if (size == MOST_BYTES)
				break;
			memmove(text + at + 1, text + at, size - at);
			text[at] = (uint8_t)letters[below(sizeof(letters) - 1)];
			size++;
			break;
		default:
			size = at;
		}
	}
	return size;
}
#endif

static void check_results(const struct reader *reader, const struct result *result,
			  struct record *const *tables, const struct odd *odds, int64_t at,
			  int64_t size)
{
	check(result->end >= at && result->end <= size, "the end is in the text");
	check(result->elements > 0 || result->end == at, "nothing is passed for nothing");
	check(result->odds <= MOST_ODDS, "odds have room");
	for (int64_t i = 0; i < result->odds; i++)
		check(odds[i].begin >= at && odds[i].begin < odds[i].end &&
			      odds[i].end <= result->end,
		      "an odd element is in the text that was passed");
	for (int table = 0; table < N_TABLES; table++) {
		check(result->records[table] <= MOST_RECORDS, "rows have room");
		for (int64_t i = 0; i < result->records[table]; i++) {
			const struct record *record = &tables[table][i];

			check(table == SYNCS || record->name < reader->names.count,
			      "a name is known");
			check(record->start_ns >= 0 && record->end_ns >= record->start_ns,
			      "time goes on");
		}
	}
}

static void scan(struct reader *reader, const uint8_t *text, size_t size)
{
	struct record *tables[N_TABLES];
	struct odd *odds = malloc(MOST_ODDS * sizeof(*odds));
	uint8_t *copy = malloc(size ? size : 1);
	int64_t at = 0, number = 0;

	memcpy(copy, text, size);
	for (int i = 0; i < N_TABLES; i++)
		tables[i] = malloc(MOST_RECORDS * sizeof(*tables[i]));
	for (;;) {
		struct result result = { 0 };

		gpucorrelate_events_scan(reader, copy, at, (int64_t)size, number, tables,
					 MOST_RECORDS, odds, MOST_ODDS, &result);
		check_results(reader, &result, tables, odds, at, (int64_t)size);
		if (!result.elements)
			break;
		number += result.elements;
		at = json_space(copy + result.end, copy + size) - copy;
		check(at < (int64_t)size && (copy[at] == ',' || copy[at] == ']'),
		      "a comma or bracket follows");
		if (copy[at++] == ']')
			break;
	}
	for (int i = 0; i < N_TABLES; i++)
		free(tables[i]);
	free(odds);
	free(copy);
}

static struct reader *begun(void)
{
	const struct word categories[] = { known("kernel", OPS, 1), known("gpu_memcpy", OPS, 2),
					   known("cuda_runtime", CALLS, 1),
					   known("cuda_sync", SYNCS, 0),
					   known("user_annotation", RANGES, 0) };
	const struct word syncs[] = { known("event sync", SYNCS, 1) };

	return gpucorrelate_events_new(categories, 5, syncs, 1);
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *text, size_t size)
{
	static struct reader *reader;

	if (!reader)
		reader = begun();
	if (size && size <= MOST_BYTES)
		scan(reader, text, size);
	if (reader->names.count > MAX_NAMES / 2)
		gpucorrelate_events_forget(reader);
	return 0;
}
#else
int main(int argc, char **argv)
{
	struct reader *reader = begun();
	static uint8_t documents[64][MOST_BYTES], text[MOST_BYTES];
	static size_t sizes[64];
	size_t count = 0;

	check(argc > 3 && reader, "seed, runs and documents are given, and there is memory");
	state = 0x9e3779b97f4a7c15u ^ strtoull(argv[1], NULL, 10);
	for (int i = 3; i < argc && count < 64; i++) {
		FILE *file = fopen(argv[i], "rb");

		check(file != NULL, "documents can be read");
		sizes[count] = fread(documents[count], 1, MOST_BYTES, file);
		fclose(file);
		count++;
	}
	for (uint64_t left = strtoull(argv[2], NULL, 10); left; left--) {
		const size_t which = below(count), other = below(count);
		const size_t head = below(sizes[which] + 1);
		size_t size = below(2) ? sizes[which] : head, tail = below(sizes[other] + 1);

		memcpy(text, documents[which], size);
		if (size == head) {
			tail = tail < MOST_BYTES - size ? tail : MOST_BYTES - size;
			memcpy(text + size, documents[other] + sizes[other] - tail, tail);
			size += tail;
		}
		scan(reader, text, spoiled(text, size));
		if (reader->names.count > MAX_NAMES / 2)
			gpucorrelate_events_forget(reader);
	}
	gpucorrelate_events_free(reader);
	return 0;
}
#endif
