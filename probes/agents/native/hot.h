/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the hooks' C core share: types, names, clock, and rows to put. */
#ifndef GPC_HOT_H
#define GPC_HOT_H

/* One object for every Python of the engine's, 3.10 and newer. */
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <structmember.h>

/* Whether a part's hooks report; the base of Part. */
struct gpc_switch {
	PyObject_HEAD char on;
};

/* Rows refused, and what voids everything stated so far; the base of Drops. */
struct gpc_counter {
	PyObject_HEAD long long count, version;
};

/* Packed rows of one kind, eight bytes a value. */
struct gpc_store {
	PyObject_HEAD PyObject *drops;
	char *data;
	Py_ssize_t width, used, room, limit;
};

/* What was last stated of a list of request ids; the base of ListRowsets. */
struct gpc_list_memo {
	PyObject_HEAD PyObject *ids, *counts;
	long long number, version;
};

/* What is remembered of a model runner. */
struct gpc_runner_memo {
	PyObject_HEAD PyObject *rowsets, *ids_name;
	long long step, rank, rowset;
};

/* What was last stated of steps and of their outputs; the base of StepRowsets. */
struct gpc_step_memo {
	PyObject_HEAD PyObject *scheduled, *ids, *in_flight, *output_ids, *output_counts;
	long long expected, tokens, number, stated_at, version;
	long long output_number, output_version;
};

/* Steps of one engine core; the base of Steps. */
struct gpc_steps_memo {
	PyObject_HEAD PyObject *open, *rowsets, *scheduler;
	long long number, turned;
};

struct gpc_types {
	PyTypeObject *switch_, *counter, *store, *list_memo, *runner_memo, *step_memo, *steps_memo;
	PyTypeObject *hook;
};

extern struct gpc_types gpc_types;

/* Attribute names, made once. */
#define GPC_NAMES(X)                    \
	X(add_done_callback)            \
	X(dummy_run)                    \
	X(engine_core_outputs)          \
	X(engine_core_timestamp)        \
	X(finished_req_ids)             \
	X(input_batch)                  \
	X(new_token_ids)                \
	X(num_computed_tokens)          \
	X(num_scheduled_tokens)         \
	X(outputs)                      \
	X(request_id)                   \
	X(request_states)               \
	X(scheduled_cached_reqs)        \
	X(scheduled_new_reqs)           \
	X(scheduled_spec_decode_tokens) \
	X(scheduler_output)             \
	X(timestamp)                    \
	X(total_num_scheduled_tokens)   \
	X(waiting)                      \
	X(_gpucorrelate_runner)         \
	X(_gpucorrelate_step)           \
	X(_gpucorrelate_steps)

struct gpc_names {
#define X(name) PyObject *name;
	GPC_NAMES(X)
#undef X
};

extern struct gpc_names gpc_name;

/* What a hook is put around. */
enum kind { SPAN, STEP, EXECUTE, SAMPLE, UPDATE, RUNNER_EXECUTE, RUNNER_SAMPLE, OUTPUTS, KINDS };

struct hook {
	PyObject_HEAD PyObject *pure, *original, *slow, *slower, *memo, *dict, *weak;
	struct gpc_switch *part;
	struct gpc_counter *drops;
	struct gpc_store *rows, *others;
	/* Last type of a result that had no callback to add. */
	PyTypeObject *plain;
	/* A number that its rows carry: the name of a span, the phase of a call. */
	long long mark;
	int follow;
	enum kind kind;
};

/* What each kind does when its part is on. */
extern PyObject *(*const gpc_actions[KINDS])(struct hook *, PyObject *, PyObject *);

/* CLOCK_MONOTONIC in nanoseconds. */
long long gpc_now(void);
/* The calling thread's kernel id, asked for once in a thread. */
long long gpc_tid(void);
/* Keep a row; 0: it did not fit, and was counted. Leaves no exception behind. */
int gpc_put(struct gpc_store *store, const long long *row);

/*
 * Drop the exception that is set, if any: what a hook's own work raises is not the engine's.
 * But signal handlers end a process from whatever Python runs at the time, so what is no
 * Exception (SystemExit, KeyboardInterrupt) is kept, to be raised where the engine sees it.
 */
void gpc_forgive(void);
/* How many threads keep an exception: while it is 0 there is none to raise. */
extern int gpc_kept;
/* Raise what the calling thread keeps, in place of what is set; 0: it keeps none. */
int gpc_raise_kept(void);

/* Each adds its types to the module; -1 with an exception set on failure. */
int gpc_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **into);
int gpc_add_memos(PyObject *module);
int gpc_add_hooks(PyObject *module);

#endif
