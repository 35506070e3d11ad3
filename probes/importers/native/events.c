/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of a trace in JSON, straight from its text into rows.
 *
 * This is the quick way, not the rule: the Python reader says what an event means. Here only what
 * is plain is turned into a row. An element that is JSON but anything else than plain (a text
 * with escapes, a number with an exponent, a key that comes twice, a value of another type) is
 * named as a span, for Python to read; text that is no JSON is not passed at all.
 *
 * No recursion, no allocation but that of names; work is linear in the text.
 */
#include "json.h"
#include "names.h"
#include "values.h"

#include <stdlib.h>

#define MAX_WORD_BYTES 29
#define MAX_WORDS 32
#define MAX_NAME 16384

enum table { OPS = 0, CALLS = 1, SYNCS = 2, RANGES = 3, N_TABLES = 4, NO_TABLE = 255 };

/* A word that is known, in lower case, and what it stands for. */
struct word {
	uint8_t text[MAX_WORD_BYTES];
	uint8_t size, table, kind;
};

struct record {
	int64_t place, start_ns, end_ns;
	uint64_t stream, correlation;
	uint64_t graph, node, bytes;		      /* of an operation */
	uint64_t event, recorded_by, recorded_stream; /* of a synchronisation */
	uint32_t pid, tid, device, context, name;
	uint8_t kind, pad[3];
};

/* An element that is left to Python. */
struct odd {
	int64_t place, begin, end;
};

struct reader {
	struct names names;
	struct word categories[MAX_WORDS], syncs[MAX_WORDS];
	int32_t n_categories, n_syncs;
};

struct result {
	int64_t end, elements, odds, starved;
	int64_t records[N_TABLES];
};

/* What is used of an event, and of its args behind ARGS. */
enum field {
	PH,
	CAT,
	NAME,
	PID,
	TID,
	TS,
	DUR,
	ARGS,
	DEVICE,
	CONTEXT,
	STREAM,
	CORRELATION,
	GRAPH,
	NODE,
	BYTES,
	SYNC,
	EVENT,
	RECORDED_BY,
	RECORDED_STREAM,
	N_FIELDS,
	UNKNOWN = N_FIELDS,
	CLOSED,
};

struct event {
	struct token fields[N_FIELDS];
	uint32_t seen; /* a bit for each field */
	bool odd, useless;
	uint8_t table, kind;
};

static bool same(place text, const char *word, size_t size)
{
	return memcmp(text, word, size) == 0;
}

#define FIELD_IF(word, field)                  \
	if (same(key, word, sizeof(word) - 1)) \
	return field

static enum field field_of(place key, size_t size)
{
	switch (size) {
	case 2:
		FIELD_IF("ph", PH);
		FIELD_IF("ts", TS);
		break;
	case 3:
		FIELD_IF("cat", CAT);
		FIELD_IF("pid", PID);
		FIELD_IF("tid", TID);
		FIELD_IF("dur", DUR);
		break;
	case 4:
		FIELD_IF("name", NAME);
		FIELD_IF("args", ARGS);
		break;
	}
	return UNKNOWN;
}

static enum field detail_of(place key, size_t size)
{
	switch (size) {
	case 5:
		FIELD_IF("bytes", BYTES);
		break;
	case 6:
		FIELD_IF("device", DEVICE);
		FIELD_IF("stream", STREAM);
		break;
	case 7:
		FIELD_IF("context", CONTEXT);
		break;
	case 8:
		FIELD_IF("graph id", GRAPH);
		break;
	case 11:
		FIELD_IF("correlation", CORRELATION);
		break;
	case 13:
		FIELD_IF("graph node id", NODE);
		break;
	case 14:
		FIELD_IF("cuda_sync_kind", SYNC);
		FIELD_IF("wait_on_stream", RECORDED_STREAM);
		break;
	case 21:
		FIELD_IF("wait_on_cuda_event_id", EVENT);
		break;
	case 33:
		FIELD_IF("wait_on_cuda_event_record_corr_id", RECORDED_BY);
		break;
	}
	return UNKNOWN;
}

/* The word that a text is in any capitals, or NULL; *ascii: whether that can be told here. */
static const struct word *word_of(const struct word *words, int32_t count,
				  const struct token *token, bool *ascii)
{
	const size_t size = (size_t)(token->end - token->begin);
	uint8_t lower[MAX_WORD_BYTES];

	*ascii = true;
	for (size_t i = 0; i < size; i++) {
		const uint8_t c = token->begin[i];

		if (c >= 0x80) {
			*ascii = false;
			return NULL;
		}
		if (i < MAX_WORD_BYTES)
			lower[i] = c >= 'A' && c <= 'Z' ? c | 0x20 : c;
	}
	for (int32_t i = 0; size <= MAX_WORD_BYTES && i < count; i++)
		if (words[i].size == size && !memcmp(words[i].text, lower, size))
			return &words[i];
	return NULL;
}

static bool name(struct reader *reader, const struct token *token, uint32_t *number)
{
	static const uint8_t nothing[1];
	const bool absent = token->kind == ABSENT;
	const int64_t size = absent ? 0 : token->end - token->begin;
	int64_t found;

	if ((!absent && token->kind != PLAIN) || size > MAX_NAME)
		return false;
	found = names_number(&reader->names, absent ? nothing : token->begin, (uint32_t)size);
	*number = (uint32_t)found;
	return found >= 0;
}

static bool operation(struct reader *reader, const struct event *event, struct record *record)
{
	const struct token *fields = event->fields;
	const bool told = fields[DEVICE].kind != ABSENT;

	return small(&fields[told ? DEVICE : PID], &record->device) &&
	       small(&fields[CONTEXT], &record->context) &&
	       natural(&fields[STREAM], NONE_U64, &record->stream) &&
	       natural(&fields[GRAPH], 0, &record->graph) &&
	       natural(&fields[NODE], 0, &record->node) &&
	       natural(&fields[BYTES], 0, &record->bytes) &&
	       name(reader, &fields[NAME], &record->name);
}

static bool call(struct reader *reader, const struct event *event, struct record *record)
{
	return low_bits(&event->fields[PID], &record->pid) &&
	       low_bits(&event->fields[TID], &record->tid) &&
	       name(reader, &event->fields[NAME], &record->name);
}

static bool synchronisation(struct reader *reader, const struct event *event, struct record *record)
{
	const struct token *fields = event->fields;
	const struct token *kind = &fields[fields[SYNC].kind == ABSENT ? NAME : SYNC];
	const bool told = fields[DEVICE].kind != ABSENT;
	const struct word *word = NULL;
	bool ascii;

	if (kind->kind != ABSENT) {
		if (kind->kind != PLAIN)
			return false;
		word = word_of(reader->syncs, reader->n_syncs, kind, &ascii);
		if (!ascii)
			return false;
	}
	record->kind = word ? word->kind : 0;
	return small(&fields[told ? DEVICE : PID], &record->device) &&
	       small(&fields[CONTEXT], &record->context) &&
	       stream_waited(&fields[STREAM], &record->stream) &&
	       natural(&fields[EVENT], NONE_U64, &record->event) &&
	       natural(&fields[RECORDED_BY], 0, &record->recorded_by) &&
	       stream_waited(&fields[RECORDED_STREAM], &record->recorded_stream);
}

static bool fill(struct reader *reader, const struct event *event, struct record *record)
{
	int64_t duration_ns;

	memset(record, 0, sizeof(*record));
	record->kind = event->kind;
	if (!nanoseconds(&event->fields[TS], &record->start_ns) ||
	    !nanoseconds(&event->fields[DUR], &duration_ns) ||
	    duration_ns > INT64_MAX - record->start_ns)
		return false;
	record->end_ns = record->start_ns + duration_ns;
	if (event->table != RANGES &&
	    !natural(&event->fields[CORRELATION], 0, &record->correlation))
		return false;
	switch (event->table) {
	case OPS:
		return operation(reader, event, record);
	case SYNCS:
		return synchronisation(reader, event, record);
	default:
		return call(reader, event, record);
	}
}

/* What an event's phase or category says of its use, as soon as it is known. */
static void judge(const struct reader *reader, struct event *event, enum field field)
{
	const struct token *token = &event->fields[field];
	const struct word *word;
	bool ascii;

	if (field == PH) {
		if (token->end - token->begin != 1 || *token->begin != 'X')
			event->useless = true;
		return;
	}
	word = word_of(reader->categories, reader->n_categories, token, &ascii);
	if (!ascii)
		event->odd = true;
	else if (!word)
		event->useless = true;
	else {
		event->table = word->table;
		event->kind = word->kind;
	}
}

static place scalar(place p, place end, struct token *token)
{
	const uint8_t first = *p;
	bool escaped = false;
	const place after = json_scalar(p, end, &escaped);

	if (stopped(after))
		return after;
	token->begin = p;
	token->end = after;
	if (first == '"') {
		token->begin++;
		token->end--;
		token->kind = escaped ? ESCAPED : PLAIN;
	} else if (first == 'n') {
		token->kind = ABSENT;
	} else {
		token->kind = first == 't' || first == 'f' ? OTHER : NUMBER;
	}
	return after;
}

/* Whether the value of a field has the type that it must have. */
static bool typed(enum field field, enum kind kind)
{
	switch (field) {
	case PH:
	case CAT:
		return kind == PLAIN;
	case NAME:
		return kind == PLAIN || kind == ESCAPED;
	case ARGS:
		return false; /* an object is no scalar */
	default:
		return true;
	}
}

/* The value of a field, which begins at p. */
static place value(const struct reader *reader, place p, place end, struct event *event,
		   enum field field)
{
	struct token *token = &event->fields[field];

	if (event->seen & 1u << field)
		event->odd = true;
	event->seen |= 1u << field;
	if (*p == '{' || *p == '[') {
		token->kind = OTHER;
		if (!typed(field, OTHER) && !(field == ARGS && *p == '{'))
			event->odd = true;
		return json_nested(p, end);
	}
	p = scalar(p, end, token);
	if (stopped(p))
		return p;
	if (!typed(field, token->kind))
		event->odd = true;
	else if (field == PH || field == CAT)
		judge(reader, event, field);
	return p;
}

/* A key of an object, or the bracket that closes it: *field says which. *p is in the object,
 * behind its opening bracket (first) or behind a value. What is given is where the value begins,
 * or what comes after the object. */
static place next_key(place p, place end, bool first, struct event *event,
		      enum field (*known)(place, size_t), enum field *field)
{
	bool escaped = false;
	place key, closing;

	p = json_space(p, end);
	if (p == end)
		return STARVED;
	if (*p == '}') {
		*field = CLOSED;
		return p + 1;
	}
	if (!first) {
		if (*p != ',')
			return DOUBT;
		p = json_space(p + 1, end);
		if (p == end)
			return STARVED;
	}
	key = p + 1;
	p = json_key(p, end, &closing, &escaped);
	if (stopped(p))
		return p;
	*field = escaped ? UNKNOWN : known(key, (size_t)(closing - key));
	if (escaped)
		event->odd = true;
	return p;
}

/* An event's args, whose opening bracket is before p. */
static place details(const struct reader *reader, place p, place end, struct event *event)
{
	enum field field;

	for (bool first = true;; first = false) {
		bool escaped;

		p = next_key(p, end, first, event, detail_of, &field);
		if (stopped(p) || field == CLOSED)
			return p;
		p = field == UNKNOWN ? json_value(p, end, &escaped)
				     : value(reader, p, end, event, field);
		if (stopped(p))
			return p;
	}
}

/* An event, whose opening bracket is before p. */
static place members(const struct reader *reader, place p, place end, struct event *event)
{
	enum field field;

	for (bool first = true;; first = false) {
		bool escaped;

		p = next_key(p, end, first, event, field_of, &field);
		if (stopped(p) || field == CLOSED)
			return p;
		if (field == UNKNOWN) {
			p = json_value(p, end, &escaped);
		} else if (field == ARGS && *p == '{' && !event->useless) {
			if (event->seen & 1u << ARGS)
				event->odd = true;
			event->seen |= 1u << ARGS;
			p = details(reader, p + 1, end, event);
		} else {
			p = value(reader, p, end, event, field);
		}
		if (stopped(p))
			return p;
	}
}

/* What becomes of an element that is not left to Python: a row of a table, or nothing. */
enum { LEFT = N_TABLES, NO_USE };

/* An element that begins at p; *table says where the row belongs that is in *record. */
static place element(struct reader *reader, place p, place end, struct record *record,
		     unsigned int *table)
{
	struct event event;
	bool escaped;

	*table = LEFT;
	if (*p != '{')
		return json_value(p, end, &escaped);
	memset(&event, 0, sizeof(event));
	event.table = NO_TABLE;
	p = members(reader, p + 1, end, &event);
	if (stopped(p) || event.odd)
		return p;
	if (event.useless || event.fields[PH].kind == ABSENT || event.table == NO_TABLE)
		*table = NO_USE;
	else if (fill(reader, &event, record))
		*table = event.table;
	return p;
}

struct reader *gpucorrelate_events_new(const struct word *categories, int32_t n_categories,
				       const struct word *syncs, int32_t n_syncs)
{
	struct reader *reader;

	if (n_categories < 0 || n_categories > MAX_WORDS || n_syncs < 0 || n_syncs > MAX_WORDS)
		return NULL;
	reader = calloc(1, sizeof(*reader));
	if (!reader)
		return NULL;
	memcpy(reader->categories, categories, (size_t)n_categories * sizeof(*categories));
	memcpy(reader->syncs, syncs, (size_t)n_syncs * sizeof(*syncs));
	reader->n_categories = n_categories;
	reader->n_syncs = n_syncs;
	return reader;
}

void gpucorrelate_events_free(struct reader *reader)
{
	if (reader)
		free(reader->names.text);
	free(reader);
}

/* The names' texts, one after another, where each ends, and how many there are. */
uint32_t gpucorrelate_events_names(const struct reader *reader, const uint8_t **text,
				   const uint32_t **ends)
{
	*text = reader->names.text;
	*ends = reader->names.ends;
	return reader->names.count;
}

/* Begin again with numbers of names. */
void gpucorrelate_events_forget(struct reader *reader)
{
	reader->names.count = reader->names.used_bytes = 0;
	memset(reader->names.slots, 0, sizeof(reader->names.slots));
}

static bool is_full(const struct result *now, int64_t max_records, int64_t max_odds)
{
	bool full = now->odds >= max_odds;

	for (int i = 0; i < N_TABLES; i++)
		full |= now->records[i] >= max_records;
	return full;
}

/* Pass whole elements of a list, each with the comma or bracket that follows it in the text.
 *
 * text[at] is where an element begins, or space before it; number is its place in the list. In
 * result->records are the rows that the tables have, which are added to. What is passed ends at
 * result->end, behind the last element. It is less than there is where a table or odds are full,
 * where the text ends within an element (starved), and one element before text that is no JSON:
 * what is wrong there may have begun in that one.
 */
void gpucorrelate_events_scan(struct reader *reader, const uint8_t *text, int64_t at, int64_t size,
			      int64_t number, struct record *const records[N_TABLES],
			      int64_t max_records, struct odd *odds, int64_t max_odds,
			      struct result *result)
{
	const place end = text + size;
	struct result now = *result, before;
	place p = text + at;

	now.end = at;
	now.elements = now.odds = now.starved = 0;
	before = now;
	while (!is_full(&now, max_records, max_odds)) {
		struct record record;
		unsigned int table = LEFT;
		place begin = json_space(p, end), after = STARVED;

		if (begin < end)
			after = element(reader, begin, end, &record, &table);
		p = after;
		if (!stopped(p)) {
			p = json_space(p, end);
			if (p == end)
				p = STARVED;
			else if (*p != ',' && *p != ']')
				p = DOUBT;
		}
		if (p == DOUBT)
			now = before;
		now.starved = p == STARVED;
		if (stopped(p))
			break;
		before = now;
		if (table < N_TABLES) {
			record.place = number + now.elements;
			records[table][now.records[table]++] = record;
		} else if (table == LEFT) {
			odds[now.odds++] =
				(struct odd){ number + now.elements, begin - text, after - text };
		}
		now.elements++;
		now.end = after - text;
		if (*p == ']')
			break;
		p++;
	}
	*result = now;
}

/* The sizes of a record, an odd, a word, a result: what Python takes them for is checked. */
void gpucorrelate_events_sizes(int64_t sizes[4])
{
	sizes[0] = sizeof(struct record);
	sizes[1] = sizeof(struct odd);
	sizes[2] = sizeof(struct word);
	sizes[3] = sizeof(struct result);
}
