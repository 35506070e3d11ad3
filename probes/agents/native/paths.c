// SPDX-License-Identifier: Apache-2.0
/*
 * The hooks' fast paths.
 *
 * A hook runs right after the model has swept the caches: what it costs is the memory it
 * touches, and a Python frame touches ten times what the work needs. So what happens in nearly
 * every step is done here, and whatever differs goes to the hook's Python: a whole call to the
 * plain hook (`pure`), or what follows a call to a function for that (`slow`, which never
 * raises). Nothing here is known to Python alone: each fast path does what the plain hook does.
 *
 * The hooked call's result or exception is always passed on as it is.
 */
#include "hot.h"

/* Small steps that leave no exception behind. */

static PyObject *attr(PyObject *of, PyObject *name)
{
	PyObject *found = of ? PyObject_GetAttr(of, name) : NULL;

	if (!found)
		gpc_forgive();
	return found;
}

/* An integer attribute; `without` when there is none. */
static long long number(PyObject *of, PyObject *name, long long without)
{
	PyObject *found = attr(of, name);
	long long value = found ? PyLong_AsLongLong(found) : without;

	if (value == -1 && PyErr_Occurred()) {
		gpc_forgive();
		value = without;
	}
	Py_XDECREF(found);
	return value;
}

/* Length of an attribute; -1 when it has none. */
static Py_ssize_t length(PyObject *of, PyObject *name)
{
	PyObject *found = attr(of, name);
	Py_ssize_t n = found ? PyObject_Size(found) : -1;

	if (n < 0)
		gpc_forgive();
	Py_XDECREF(found);
	return n;
}

/* Whether two objects are equal; the second may be borrowed. */
static int same(PyObject *a, PyObject *b)
{
	int equal;

	/* Comparing may be anybody's code, which could take away what is not held. */
	Py_XINCREF(b);
	/* A list that another thread shortened gives NULL. */
	equal = a && b ? PyObject_RichCompareBool(a, b, Py_EQ) : -1;
	if (equal < 0)
		gpc_forgive();
	Py_XDECREF(b);
	return equal > 0;
}

static int empty(PyObject *of, PyObject *name)
{
	PyObject *found = attr(of, name);
	int yes = found ? PyObject_IsTrue(found) == 0 : 0;

	gpc_forgive();
	Py_XDECREF(found);
	return yes;
}

/* Seconds as nanoseconds; 0 for what is no time. */
static long long nanoseconds(PyObject *seconds)
{
	double value = seconds && seconds != Py_None ? PyFloat_AsDouble(seconds) : 0;

	gpc_forgive();
	return value > 0 && value < 9e9 ? (long long)(value * 1e9) : 0;
}

/* Argument `at` or of that name, borrowed; NULL when it was not given. */
static PyObject *argument(PyObject *args, PyObject *kwargs, Py_ssize_t at, PyObject *name)
{
	PyObject *found = NULL;

	if (PyTuple_Size(args) > at)
		return PyTuple_GetItem(args, at);
	if (kwargs)
		found = PyDict_GetItemWithError(kwargs, name);
	gpc_forgive();
	return found;
}

/* An exception set aside while rows are put. */
struct aside {
	PyObject *type, *value, *trace;
};

static void set_aside(struct aside *it)
{
	PyErr_Fetch(&it->type, &it->value, &it->trace);
}

static void raise_again(struct aside *it)
{
	PyErr_Restore(it->type, it->value, it->trace);
}

/* The exception itself, borrowed. */
static PyObject *exception(struct aside *it)
{
	PyErr_NormalizeException(&it->type, &it->value, &it->trace);
	return it->value ? it->value : Py_None;
}

/* Slow paths do not raise; were one to, the engine would still not see it. */
static PyObject *quietly(PyObject *result)
{
	if (!result)
		gpc_forgive();
	return result;
}

/* Done with a slow path that gives nothing. */
static void done(PyObject *result)
{
	Py_XDECREF(quietly(result));
}

/* What was kept comes instead of the call: what ends the engine must not wait for a step. */
static PyObject *either(PyObject *callable, PyObject *args, PyObject *kwargs)
{
	return gpc_kept && gpc_raise_kept() ? NULL : PyObject_Call(callable, args, kwargs);
}

static PyObject *call(struct hook *h, PyObject *args, PyObject *kwargs)
{
	return either(h->original, args, kwargs);
}

static PyObject *whole(struct hook *h, PyObject *args, PyObject *kwargs)
{
	return either(h->pure, args, kwargs);
}

/* A span of work on the calling thread. */
static PyObject *span(struct hook *h, PyObject *args, PyObject *kwargs)
{
	long long start = gpc_now();
	PyObject *result = call(h, args, kwargs);
	long long row[] = { gpc_tid(), h->mark, start, gpc_now(), 0 };
	struct aside raised = { 0 };

	if (!result)
		set_aside(&raised);
	gpc_put(h->rows, row);
	if (!result)
		raise_again(&raised);
	return result;
}

/* EngineCore.step: note when the loop turned to it. `slow` takes (core, error) when it raised. */
static PyObject *step(struct hook *h, PyObject *args, PyObject *kwargs)
{
	PyObject *core = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : NULL;
	PyObject *steps = attr(core, gpc_name._gpucorrelate_steps), *result;
	struct aside raised = { 0 };

	if (!steps || !PyObject_TypeCheck(steps, gpc_types.steps_memo)) {
		Py_XDECREF(steps);
		return whole(h, args, kwargs);
	}
	if (h->part->on)
		((struct gpc_steps_memo *)steps)->turned = gpc_now();
	result = call(h, args, kwargs);
	if (!result && h->part->on) {
		set_aside(&raised);
		done(PyObject_CallFunctionObjArgs(h->slow, core, exception(&raised), NULL));
		raise_again(&raised);
	}
	Py_DECREF(steps);
	return result;
}

/* Whether the sum of a list of integers is `expected`. */
static int sums_to(PyObject *list, long long expected)
{
	unsigned long long sum = 0;

	if (!list || !PyList_Check(list))
		return 0;
	for (Py_ssize_t i = 0, n = PyList_Size(list); i < n; i++) {
		long long value = PyLong_AsLongLong(PyList_GetItem(list, i));

		if (value == -1 && PyErr_Occurred()) {
			gpc_forgive();
			return 0;
		}
		sum += (unsigned long long)value;
	}
	return sum == (unsigned long long)expected;
}

#define MAX_IN_FLIGHT 64

/*
 * Whether two dictionaries are equal. In steady decode they have the very same keys and values
 * in the same order, which is read off in one pass, without looking a key up.
 */
static int same_dicts(PyObject *a, PyObject *b)
{
	PyObject *key, *value, *other_key, *other_value;
	Py_ssize_t at = 0, other = 0;

	if (!PyDict_Check(a) || !PyDict_Check(b) || PyDict_Size(a) != PyDict_Size(b))
		return 0;
	while (PyDict_Next(a, &at, &key, &value) &&
	       PyDict_Next(b, &other, &other_key, &other_value))
		if (key != other_key || value != other_value)
			return same(a, b);
	return 1;
}

/* Whether a scheduler's output holds what the last statement said, one step on. */
static int unchanged(struct hook *h, struct gpc_step_memo *memo, PyObject *output)
{
	PyObject *scheduled, *cached, *computed;
	int yes;

	if (memo->version != h->drops->version || memo->scheduled == Py_None || !memo->in_flight ||
	    (size_t)PyDict_Size(memo->in_flight) >= MAX_IN_FLIGHT)
		return gpc_forgive(), 0;
	scheduled = attr(output, gpc_name.num_scheduled_tokens);
	yes = scheduled && memo->scheduled && same_dicts(scheduled, memo->scheduled);
	Py_XDECREF(scheduled);
	if (!yes)
		return 0;
	cached = attr(output, gpc_name.scheduled_cached_reqs);
	computed = attr(cached, gpc_name.num_computed_tokens);
	yes = sums_to(computed, memo->expected) && empty(output, gpc_name.scheduled_new_reqs) &&
	      empty(output, gpc_name.scheduled_spec_decode_tokens);
	Py_XDECREF(computed);
	Py_XDECREF(cached);
	return yes;
}

/* What was last stated of steps; it is held, because attributes may be anybody's code. */
static struct gpc_step_memo *hold_memo(struct gpc_steps_memo *steps)
{
	PyObject *memo = steps->rowsets;

	if (!memo || !PyObject_TypeCheck(memo, gpc_types.step_memo))
		return NULL;
	Py_INCREF(memo);
	return (struct gpc_step_memo *)memo;
}

/* Begin a step whose rows are as stated; its number, or 0 when it has to be done in Python. */
static long long begin(struct hook *h, struct gpc_steps_memo *steps, struct gpc_step_memo *memo,
		       PyObject *output, long long start)
{
	long long tokens, rows, given = steps->number + 1;
	Py_ssize_t waiting;
	PyObject *at;
	int failed;

	if (!unchanged(h, memo, output))
		return 0;
	tokens = number(output, gpc_name.total_num_scheduled_tokens, -1);
	waiting = length(steps->scheduler, gpc_name.waiting);
	at = tokens < 0 || waiting < 0 ? NULL : PyLong_FromLongLong(given);
	if (!at)
		return gpc_forgive(), 0;
	/* After the attribute is set nobody else's code runs: what is there then stays there. */
	failed = PyObject_SetAttr(output, gpc_name._gpucorrelate_step, at) || !memo->scheduled ||
		 (rows = PyDict_Size(memo->scheduled)) < 0 || !memo->ids || !memo->in_flight ||
		 PyDict_SetItem(memo->in_flight, at, memo->ids) || !steps->open ||
		 PyDict_SetItem(steps->open, at, Py_None);
	Py_DECREF(at);
	if (failed)
		return gpc_forgive(), 0;
	steps->number = given;
	memo->expected += memo->tokens;
	{
		long long turned = steps->turned;
		long long row[] = { given,
				    gpc_tid(),
				    turned,
				    turned ? start : 0,
				    start,
				    memo->number,
				    given - memo->stated_at,
				    rows,
				    tokens,
				    waiting };

		steps->turned = 0;
		gpc_put(h->rows, row);
	}
	return given;
}

/* End a step, now or when its result says; an error ends it at once. */
static void settle(struct hook *h, long long at, long long when, PyObject *result, PyObject *error)
{
	done(PyObject_CallFunction(h->slower, "LLOO", at, when, result, error));
}

/* End a step whose call raised, and pass that on. */
static PyObject *settle_raised(struct hook *h, long long at, long long when)
{
	struct aside raised = { 0 };

	set_aside(&raised);
	settle(h, at, when, Py_None, exception(&raised));
	raise_again(&raised);
	return NULL;
}

/*
 * Executor.execute_model: a step begins. `memo` is Steps, `mark` the span's name. `slow` takes
 * (output, start) and gives the step's number; `slower` takes (step, when, result, error) and
 * ends it: now, or when the result says. `follow`: it does not sample in a call of its own.
 */
static PyObject *execute(struct hook *h, PyObject *args, PyObject *kwargs)
{
	struct gpc_steps_memo *steps = (struct gpc_steps_memo *)h->memo;
	struct gpc_step_memo *memo;
	PyObject *output = argument(args, kwargs, 0, gpc_name.scheduler_output), *result, *said;
	long long start, at;

	if (!output)
		return whole(h, args, kwargs);
	start = gpc_now();
	memo = hold_memo(steps);
	at = memo ? begin(h, steps, memo, output, start) : 0;
	Py_XDECREF(memo);
	if (!at) {
		said = quietly(PyObject_CallFunction(h->slow, "OL", output, start));
		at = said ? PyLong_AsLongLong(said) : 0;
		Py_XDECREF(said);
		gpc_forgive();
	}
	result = call(h, args, kwargs);
	if (!result)
		return settle_raised(h, at, gpc_now());
	{
		long long row[] = { gpc_tid(), h->mark, start, gpc_now(), at };

		gpc_put(h->others, row);
		if (h->follow)
			settle(h, at, row[3], result, Py_None);
	}
	return result;
}

/* Whether a result will call back; the type that did not is remembered. */
static int calls_back(struct hook *h, PyObject *result)
{
	PyTypeObject *before;
	PyObject *found;

	if (Py_TYPE(result) == h->plain)
		return 0;
	found = attr(result, gpc_name.add_done_callback);
	Py_XDECREF(found);
	if (found)
		return 1;
	before = h->plain;
	h->plain = Py_TYPE(result);
	Py_INCREF(h->plain);
	Py_XDECREF(before);
	return 0;
}

/* Whether a step has not ended; `close`: it has from now on. */
static int is_open(struct gpc_steps_memo *steps, long long at, int close)
{
	PyObject *key = PyLong_FromLongLong(at);
	int open = key && steps->open && PyDict_GetItemWithError(steps->open, key) &&
		   (!close || PyDict_DelItem(steps->open, key) == 0);

	Py_XDECREF(key);
	gpc_forgive();
	return open;
}

/* Executor.sample_tokens: a step ends, now or with a future; `slower` as in execute(). */
static PyObject *sample(struct hook *h, PyObject *args, PyObject *kwargs)
{
	struct gpc_steps_memo *steps = (struct gpc_steps_memo *)h->memo;
	long long at = steps->number, start = gpc_now();
	PyObject *result = call(h, args, kwargs);
	long long row[] = { gpc_tid(), h->mark, start, gpc_now(), at };

	if (!result)
		return settle_raised(h, at, row[3]);
	gpc_put(h->others, row);
	if (calls_back(h, result)) {
		settle(h, at, row[3], result, Py_None);
	} else if (is_open(steps, at, 1)) {
		long long end[] = { at, row[0], row[3], 0, 0 };

		gpc_put(h->rows, end);
	}
	return result;
}

/* Requests that the scheduler counts as finished since it last told the workers. */
static Py_ssize_t finished(struct gpc_steps_memo *steps)
{
	Py_ssize_t n = length(steps->scheduler, gpc_name.finished_req_ids);

	return n < 0 ? 0 : n;
}

/* Whether outputs are one token for each row of the step, in its order. */
static int one_each(PyObject *outputs, PyObject *ids)
{
	Py_ssize_t n = outputs && PyList_Check(outputs) ? PyList_Size(outputs) : 0;
	PyObject *first, *last, *a, *b;
	int yes;

	if (n < 1 || !PyList_Check(ids) || PyList_Size(ids) != n)
		return 0;
	first = PyList_GetItem(outputs, 0);
	last = PyList_GetItem(outputs, n - 1);
	Py_INCREF(first);
	Py_INCREF(last);
	a = attr(first, gpc_name.request_id);
	b = attr(last, gpc_name.request_id);
	yes = same(a, PyList_GetItem(ids, 0)) && same(b, PyList_GetItem(ids, n - 1)) &&
	      length(first, gpc_name.new_token_ids) == 1;
	Py_XDECREF(a);
	Py_XDECREF(b);
	Py_DECREF(first);
	Py_DECREF(last);
	return yes;
}

/* The one client's outputs of a step, as its rows said; 0 when it is anything else. */
static int updated(struct hook *h, struct gpc_step_memo *memo, PyObject *result, long long *row)
{
	PyObject *client, *item, *ids, *outputs, *stamp, *at;
	Py_ssize_t next = 0;
	int yes = 0;

	if (!PyDict_Check(result) || PyDict_Size(result) != 1 || !memo->in_flight ||
	    memo->output_version != h->drops->version ||
	    !PyDict_Next(result, &next, &client, &item))
		return 0;
	at = PyLong_FromLongLong(row[0]);
	ids = at ? PyDict_GetItemWithError(memo->in_flight, at) : NULL;
	/* Attributes may be anybody's code: what they could take away is held meanwhile. */
	Py_XINCREF(ids);
	Py_INCREF(item);
	outputs = attr(item, gpc_name.outputs);
	if (ids && ids == memo->output_ids && one_each(outputs, ids)) {
		row[6] = PyList_Size(outputs);
		stamp = attr(item, gpc_name.timestamp);
		row[4] = nanoseconds(stamp);
		Py_XDECREF(stamp);
		row[5] = memo->output_number;
		yes = memo->in_flight && PyDict_DelItem(memo->in_flight, at) == 0;
	}
	gpc_forgive();
	Py_XDECREF(outputs);
	Py_XDECREF(at);
	Py_XDECREF(ids);
	Py_DECREF(item);
	return yes;
}

/*
 * Scheduler.update_from_output: a step's outputs. `slower` takes (step, when, None, None) to
 * end a step that nothing else has, `slow` takes (step, start, end, result, finished).
 */
static PyObject *update(struct hook *h, PyObject *args, PyObject *kwargs)
{
	struct gpc_steps_memo *steps = (struct gpc_steps_memo *)h->memo;
	struct gpc_step_memo *memo;
	PyObject *output = argument(args, kwargs, 0, gpc_name.scheduler_output), *result;
	long long at = output ? number(output, gpc_name._gpucorrelate_step, 0) : 0, start;
	Py_ssize_t before;

	if (!at)
		return whole(h, args, kwargs);
	before = finished(steps);
	start = gpc_now();
	if (is_open(steps, at, 0))
		settle(h, at, start, Py_None, Py_None);
	result = call(h, args, kwargs);
	if (result) {
		long long end = gpc_now(), ended = finished(steps) - before;
		long long row[] = { at, gpc_tid(), start, end, 0, 0, 0, ended };

		memo = hold_memo(steps);
		if (memo && updated(h, memo, result, row))
			gpc_put(h->rows, row);
		else
			done(PyObject_CallFunction(h->slow, "LLLOL", at, start, end, result,
						   ended));
		Py_XDECREF(memo);
	}
	return result;
}

/* A model runner's batch is what was last stated. */
static int packed_as_stated(struct hook *h, struct gpc_runner_memo *memo, PyObject *runner)
{
	struct gpc_list_memo *stated = (struct gpc_list_memo *)memo->rowsets;
	PyObject *batch, *ids, *name = memo->ids_name;
	int yes;

	if (!stated || !PyObject_TypeCheck(memo->rowsets, gpc_types.list_memo) ||
	    stated->version != h->drops->version || !name || !PyUnicode_Check(name))
		return 0;
	Py_INCREF(stated);
	Py_INCREF(name);
	batch = attr(runner, gpc_name.input_batch);
	ids = attr(batch, name);
	yes = same(ids, stated->ids);
	memo->rowset = yes ? stated->number : memo->rowset;
	Py_XDECREF(ids);
	Py_XDECREF(batch);
	Py_DECREF(name);
	Py_DECREF(stated);
	return yes;
}

/*
 * A model runner's execute_model or sample_tokens. `mark` is the phase; `slow` takes
 * (runner, args, kwargs, start, end).
 */
static PyObject *run(struct hook *h, PyObject *args, PyObject *kwargs)
{
	PyObject *runner = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : NULL;
	PyObject *output = argument(args, kwargs, 1, gpc_name.scheduler_output), *result;
	struct gpc_runner_memo *memo;
	struct aside raised = { 0 };
	long long start, end;
	int plain = h->kind == RUNNER_SAMPLE;

	if (!runner || (kwargs && PyDict_GetItemWithError(kwargs, gpc_name.dummy_run)))
		return whole(h, args, kwargs);
	gpc_forgive();
	/* Held, because the call gets the same keywords and may empty them. */
	Py_XINCREF(output);
	start = gpc_now();
	result = call(h, args, kwargs);
	end = gpc_now();
	if (!result)
		set_aside(&raised);
	memo = (struct gpc_runner_memo *)attr(runner, gpc_name._gpucorrelate_runner);
	if (memo && !PyObject_TypeCheck((PyObject *)memo, gpc_types.runner_memo)) {
		Py_DECREF(memo);
		memo = NULL;
	}
	if (memo && !plain && output && packed_as_stated(h, memo, runner)) {
		memo->step = number(output, gpc_name._gpucorrelate_step, 0);
		plain = 1;
	}
	if (memo && plain) {
		long long row[] = { memo->step, gpc_tid(), memo->rank,	h->mark,
				    start,	end,	   memo->rowset };

		gpc_put(h->rows, row);
	} else {
		PyObject *named = kwargs ? kwargs : Py_None;

		done(PyObject_CallFunction(h->slow, "OOOLL", runner, args, named, start, end));
	}
	Py_XDECREF(memo);
	Py_XDECREF(output);
	if (!result)
		raise_again(&raised);
	return result;
}

/* Tokens of outputs that are what was last stated; -1 when they are not. */
static long long stated_tokens(struct hook *h, PyObject *outputs)
{
	struct gpc_list_memo *stated = (struct gpc_list_memo *)h->memo;
	PyObject *ids = stated->ids, *counts = stated->counts;
	Py_ssize_t n = PyList_Check(outputs) ? PyList_Size(outputs) : -1;
	long long tokens = 0;

	if (n < 1 || stated->version != h->drops->version || !ids || !counts ||
	    !PyList_Check(ids) || PyList_Size(ids) != n || !PyList_Check(counts) ||
	    PyList_Size(counts) != n)
		return -1;
	Py_INCREF(ids);
	Py_INCREF(counts);
	for (Py_ssize_t i = 0; i < n && tokens >= 0; i++) {
		PyObject *output = PyList_GetItem(outputs, i), *id;
		long long count;

		Py_XINCREF(output);
		id = attr(output, gpc_name.request_id);
		count = PyLong_AsLongLong(PyList_GetItem(counts, i));
		if (count < 0)
			gpc_forgive();
		if (same(id, PyList_GetItem(ids, i)) &&
		    length(output, gpc_name.new_token_ids) == count)
			tokens += count;
		else
			tokens = -1;
		Py_XDECREF(id);
		Py_XDECREF(output);
	}
	gpc_forgive();
	Py_DECREF(ids);
	Py_DECREF(counts);
	return tokens;
}

/*
 * OutputProcessor.process_outputs: a batch of outputs taken in. `memo` is its ListRowsets;
 * `slow` takes (outputs) and gives (rowset, tokens), `slower` takes (outputs, result, end) when
 * requests ended with them.
 */
static PyObject *outputs_in(struct hook *h, PyObject *args, PyObject *kwargs)
{
	PyObject *processor = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : NULL, *result;
	PyObject *outputs = argument(args, kwargs, 1, gpc_name.engine_core_outputs);
	PyObject *stamp = argument(args, kwargs, 2, gpc_name.engine_core_timestamp), *said;
	Py_ssize_t alive = processor ? length(processor, gpc_name.request_states) : -1;
	long long tokens, rowset, start, sent;

	if (!outputs || alive < 0)
		return whole(h, args, kwargs);
	/* Held, because the call gets the same keywords and may empty them. */
	Py_INCREF(outputs);
	sent = nanoseconds(stamp);
	/* Before the call, because it may trim the outputs it is given. */
	tokens = stated_tokens(h, outputs);
	rowset = ((struct gpc_list_memo *)h->memo)->number;
	if (tokens < 0) {
		said = quietly(PyObject_CallFunctionObjArgs(h->slow, outputs, NULL));
		if (!said || !PyArg_ParseTuple(said, "LL", &rowset, &tokens)) {
			gpc_forgive();
			Py_XDECREF(said);
			Py_DECREF(outputs);
			return whole(h, args, kwargs);
		}
		Py_DECREF(said);
	}
	start = gpc_now();
	result = call(h, args, kwargs);
	if (result) {
		long long end = gpc_now();
		long long row[] = { gpc_tid(), start, end, sent, rowset, tokens };

		gpc_put(h->rows, row);
		if (length(processor, gpc_name.request_states) != alive)
			done(PyObject_CallFunction(h->slower, "OOL", outputs, result, end));
	}
	Py_DECREF(outputs);
	return result;
}

PyObject *(*const gpc_actions[KINDS])(struct hook *, PyObject *, PyObject *) = {
	[SPAN] = span,	   [STEP] = step,	   [EXECUTE] = execute,	  [SAMPLE] = sample,
	[UPDATE] = update, [RUNNER_EXECUTE] = run, [RUNNER_SAMPLE] = run, [OUTPUTS] = outputs_in,
};
