// SPDX-License-Identifier: Apache-2.0
/*
 * What the hooks keep between calls, as plain structs: C reads and writes the fields that
 * Python sees as attributes, so the slow paths in Python and the fast ones here share them.
 */
#include "hot.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct gpc_types gpc_types;

static __thread long long own_tid;

static void forget_tid(void)
{
	own_tid = 0;
}

long long gpc_tid(void)
{
	if (!own_tid)
		own_tid = syscall(SYS_gettid);
	return own_tid;
}

long long gpc_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static __thread struct {
	PyObject *type, *value, *trace;
} kept;
int gpc_kept;

void gpc_forgive(void)
{
	if (!PyErr_Occurred())
		return;
	if (kept.type || PyErr_ExceptionMatches(PyExc_Exception)) {
		PyErr_Clear();
		return;
	}
	PyErr_Fetch(&kept.type, &kept.value, &kept.trace);
	gpc_kept++;
}

int gpc_raise_kept(void)
{
	PyObject *type = kept.type;

	if (!type)
		return 0;
	kept.type = NULL;
	gpc_kept--;
	PyErr_Restore(type, kept.value, kept.trace);
	return 1;
}

/* Every type here holds objects that may refer back to it, through the engine's instances. */
#define OBJECT(type, field)                                             \
	{                                                               \
#field, T_OBJECT, offsetof(struct type, field), 0, NULL \
	}
#define NUMBER(type, field)                                               \
	{                                                                 \
#field, T_LONGLONG, offsetof(struct type, field), 0, NULL \
	}
#define END                         \
	{                           \
		NULL, 0, 0, 0, NULL \
	}

static void free_instance(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release(self);
	Py_DECREF(type);
}

static PyMemberDef switch_members[] = {
	{ "on", T_BOOL, offsetof(struct gpc_switch, on), 0, NULL },
	END,
};
static PyType_Slot switch_slots[] = {
	{ Py_tp_members, switch_members },
	{ Py_tp_dealloc, free_instance },
	{ 0, NULL },
};
static PyType_Spec switch_spec = {
	.name = "gpucorrelate.probes.agents._hot.Switch",
	.basicsize = sizeof(struct gpc_switch),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = switch_slots,
};

static PyMemberDef counter_members[] = {
	NUMBER(gpc_counter, count),
	NUMBER(gpc_counter, version),
	END,
};
static PyType_Slot counter_slots[] = {
	{ Py_tp_members, counter_members },
	{ Py_tp_dealloc, free_instance },
	{ 0, NULL },
};
static PyType_Spec counter_spec = {
	.name = "gpucorrelate.probes.agents._hot.Counter",
	.basicsize = sizeof(struct gpc_counter),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = counter_slots,
};

/* Store */

static int store_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct gpc_store *store = (struct gpc_store *)self;
	Py_ssize_t width, limit;
	PyObject *drops, *before = store->drops;

	(void)kwargs;
	if (!PyArg_ParseTuple(args, "nnO!:Store", &width, &limit, gpc_types.counter, &drops))
		return -1;
	if (store->width || width < 1 || width > 64 || limit < 1 || limit > 1 << 24) {
		PyErr_SetString(PyExc_ValueError, "a store of 1 to 64 columns, made once");
		return -1;
	}
	Py_INCREF(drops);
	store->drops = drops;
	Py_XDECREF(before);
	store->width = width * (Py_ssize_t)sizeof(long long);
	store->limit = limit * store->width;
	return 0;
}

static int store_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct gpc_store *)self)->drops);
	return 0;
}

static int store_clear(PyObject *self)
{
	Py_CLEAR(((struct gpc_store *)self)->drops);
	return 0;
}

static void store_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	store_clear(self);
	PyMem_Free(((struct gpc_store *)self)->data);
	free_instance(self);
}

static void refuse(struct gpc_store *store)
{
	PyObject *done = store->drops ? PyObject_CallMethod(store->drops, "add", "i", 1) : NULL;

	gpc_forgive();
	Py_XDECREF(done);
}

/* Room for one more row; NULL when there is none. */
static char *reserve(struct gpc_store *store)
{
	if (store->used >= store->limit)
		return NULL;
	if (store->used == store->room) {
		Py_ssize_t room = store->room ? 2 * store->room : 64 * store->width;
		char *grown;

		if (room > store->limit)
			room = store->limit;
		grown = PyMem_Realloc(store->data, (size_t)room);
		if (!grown)
			return NULL;
		store->data = grown;
		store->room = room;
	}
	return store->data + store->used;
}

int gpc_put(struct gpc_store *store, const long long *row)
{
	char *at = reserve(store);

	if (!at) {
		refuse(store);
		return 0;
	}
	memcpy(at, row, (size_t)store->width);
	store->used += store->width;
	return 1;
}

static PyObject *store_put(PyObject *self, PyObject *row)
{
	struct gpc_store *store = (struct gpc_store *)self;
	Py_ssize_t n = store->width / (Py_ssize_t)sizeof(long long);
	long long values[64];
	int fits = PyTuple_Check(row) && PyTuple_Size(row) == n;

	for (Py_ssize_t i = 0; fits && i < n; i++) {
		values[i] = PyLong_AsLongLong(PyTuple_GetItem(row, i));
		fits = values[i] != -1 || !PyErr_Occurred();
	}
	if (fits) {
		fits = gpc_put(store, values);
	} else {
		gpc_forgive();
		refuse(store);
	}
	if (gpc_kept && gpc_raise_kept())
		return NULL;
	return PyBool_FromLong(fits);
}

#define KEEP_BYTES (64 * 1024)

static PyObject *store_take(PyObject *self, PyObject *unused)
{
	struct gpc_store *store = (struct gpc_store *)self;
	PyObject *taken = PyBytes_FromStringAndSize(store->data, store->used);

	(void)unused;
	if (!taken)
		return NULL;
	store->used = 0;
	/* What a stall filled is not kept for the next one. */
	if (store->room > KEEP_BYTES) {
		PyMem_Free(store->data);
		store->data = NULL;
		store->room = 0;
	}
	return taken;
}

static Py_ssize_t store_length(PyObject *self)
{
	struct gpc_store *store = (struct gpc_store *)self;

	return store->width ? store->used / store->width : 0;
}

static PyMethodDef store_methods[] = {
	{ "put", store_put, METH_O,
	  "Keep a row of integers; False: it did not fit, and was counted." },
	{ "take", store_take, METH_NOARGS, "The rows so far, packed, leaving none." },
	{ NULL, NULL, 0, NULL },
};
static PyType_Slot store_slots[] = {
	{ Py_tp_init, store_init },
	{ Py_tp_methods, store_methods },
	{ Py_sq_length, store_length },
	{ Py_tp_traverse, store_traverse },
	{ Py_tp_clear, store_clear },
	{ Py_tp_dealloc, store_dealloc },
	{ 0, NULL },
};
static PyType_Spec store_spec = {
	.name = "gpucorrelate.probes.agents._hot.Store",
	.basicsize = sizeof(struct gpc_store),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = store_slots,
};

/* The low bytes of a value, the lowest first, whatever the host's order. */
static void put_low(char *to, const char *from, Py_ssize_t size)
{
	uint64_t value;

	memcpy(&value, from, sizeof(value));
	for (Py_ssize_t i = 0; i < size; i++, value >>= 8)
		to[i] = (char)value;
}

/* Columns of packed rows: of each value its low bytes, as many as the column's size says. */
static PyObject *transposed(PyObject *module, PyObject *args)
{
	char *rows, *sizes;
	Py_ssize_t bytes, width, count;
	PyObject *all, *each, *columns;

	(void)module;
	/* No y#: built with the headers of 3.13 or newer, it fails in a Python before that. */
	if (!PyArg_ParseTuple(args, "SS:transposed", &all, &each) ||
	    PyBytes_AsStringAndSize(all, &rows, &bytes) ||
	    PyBytes_AsStringAndSize(each, &sizes, &width))
		return NULL;
	for (Py_ssize_t at = 0; at < width; at++)
		if (sizes[at] != 1 && sizes[at] != 2 && sizes[at] != 4 && sizes[at] != 8)
			width = 0;
	if (!width || bytes % (8 * width)) {
		PyErr_SetString(PyExc_ValueError,
				"not whole rows of columns of 1, 2, 4 or 8 bytes");
		return NULL;
	}
	count = bytes / (8 * width);
	columns = PyList_New(width);
	for (Py_ssize_t at = 0; columns && at < width; at++) {
		Py_ssize_t size = sizes[at];
		PyObject *column = PyBytes_FromStringAndSize(NULL, count * size);
		char *to = column ? PyBytes_AsString(column) : NULL;

		if (!to) {
			Py_CLEAR(columns);
			break;
		}
		for (Py_ssize_t row = 0; row < count; row++)
			put_low(to + row * size, rows + 8 * (row * width + at), size);
		PyList_SetItem(columns, at, column);
	}
	return columns;
}

/*
 * Device and inode of an open file. Unlike os.fstat() it keeps the interpreter, which the
 * sending thread would have to get back from the engine: a thing of microseconds either way.
 */
static PyObject *identity(PyObject *module, PyObject *fd)
{
	struct stat found;
	long number = PyLong_AsLong(fd);

	(void)module;
	if (number == -1 && PyErr_Occurred())
		return NULL;
	if (fstat(number == (int)number ? (int)number : -1, &found))
		return PyErr_SetFromErrno(PyExc_OSError);
	return Py_BuildValue("KK", (unsigned long long)found.st_dev,
			     (unsigned long long)found.st_ino);
}

static PyMethodDef functions[] = {
	{ "identity", identity, METH_O, "Device and inode of an open file." },
	{ "transposed", transposed, METH_VARARGS, "Columns of a store's rows." },
	{ NULL, NULL, 0, NULL },
};

/* Memos: their objects come first, right after the head, so that one loop serves them all. */
#define MEMO(memo, title, objects)                                                      \
	static int memo##_traverse(PyObject *self, visitproc visit, void *arg)          \
	{                                                                               \
		PyObject **at = (PyObject **)((char *)self + sizeof(PyObject));         \
                                                                                        \
		Py_VISIT(Py_TYPE(self));                                                \
		for (int i = 0; i < (objects); i++)                                     \
			Py_VISIT(at[i]);                                                \
		return 0;                                                               \
	}                                                                               \
	static int memo##_clear(PyObject *self)                                         \
	{                                                                               \
		PyObject **at = (PyObject **)((char *)self + sizeof(PyObject));         \
                                                                                        \
		for (int i = 0; i < (objects); i++)                                     \
			Py_CLEAR(at[i]);                                                \
		return 0;                                                               \
	}                                                                               \
	static void memo##_dealloc(PyObject *self)                                      \
	{                                                                               \
		PyObject_GC_UnTrack(self);                                              \
		memo##_clear(self);                                                     \
		free_instance(self);                                                    \
	}                                                                               \
	static PyType_Slot memo##_slots[] = {                                           \
		{ Py_tp_members, memo##_members },                                      \
		{ Py_tp_traverse, memo##_traverse },                                    \
		{ Py_tp_clear, memo##_clear },                                          \
		{ Py_tp_dealloc, memo##_dealloc },                                      \
		{ 0, NULL },                                                            \
	};                                                                              \
	static PyType_Spec memo##_spec = {                                              \
		.name = "gpucorrelate.probes.agents._hot." title,                       \
		.basicsize = sizeof(struct gpc_##memo),                                 \
		.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, \
		.slots = memo##_slots,                                                  \
	}

static PyMemberDef list_memo_members[] = {
	OBJECT(gpc_list_memo, ids),
	OBJECT(gpc_list_memo, counts),
	NUMBER(gpc_list_memo, number),
	NUMBER(gpc_list_memo, version),
	END,
};
MEMO(list_memo, "ListMemo", 2);

static PyMemberDef runner_memo_members[] = {
	OBJECT(gpc_runner_memo, rowsets), OBJECT(gpc_runner_memo, ids_name),
	NUMBER(gpc_runner_memo, step),	  NUMBER(gpc_runner_memo, rank),
	NUMBER(gpc_runner_memo, rowset),  END,
};
MEMO(runner_memo, "RunnerMemo", 2);

static PyMemberDef step_memo_members[] = {
	OBJECT(gpc_step_memo, scheduled),
	OBJECT(gpc_step_memo, ids),
	OBJECT(gpc_step_memo, in_flight),
	OBJECT(gpc_step_memo, output_ids),
	OBJECT(gpc_step_memo, output_counts),
	NUMBER(gpc_step_memo, expected),
	NUMBER(gpc_step_memo, tokens),
	NUMBER(gpc_step_memo, number),
	NUMBER(gpc_step_memo, stated_at),
	NUMBER(gpc_step_memo, version),
	NUMBER(gpc_step_memo, output_number),
	NUMBER(gpc_step_memo, output_version),
	END,
};
MEMO(step_memo, "StepMemo", 5);

static PyMemberDef steps_memo_members[] = {
	OBJECT(gpc_steps_memo, open),	   OBJECT(gpc_steps_memo, rowsets),
	OBJECT(gpc_steps_memo, scheduler), NUMBER(gpc_steps_memo, number),
	NUMBER(gpc_steps_memo, turned),	   END,
};
MEMO(steps_memo, "StepsMemo", 3);

int gpc_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **into)
{
	PyObject *type = PyType_FromSpec(spec);

	if (!type)
		return -1;
	*into = (PyTypeObject *)type;
	return PyModule_AddType(module, *into);
}

int gpc_add_memos(PyObject *module)
{
	/* A forked child's only thread has the parent's copy of the number. */
	pthread_atfork(NULL, NULL, forget_tid);
	if (PyModule_AddFunctions(module, functions))
		return -1;
	return gpc_add_type(module, &switch_spec, &gpc_types.switch_) ||
			       gpc_add_type(module, &counter_spec, &gpc_types.counter) ||
			       gpc_add_type(module, &store_spec, &gpc_types.store) ||
			       gpc_add_type(module, &list_memo_spec, &gpc_types.list_memo) ||
			       gpc_add_type(module, &runner_memo_spec, &gpc_types.runner_memo) ||
			       gpc_add_type(module, &step_memo_spec, &gpc_types.step_memo) ||
			       gpc_add_type(module, &steps_memo_spec, &gpc_types.steps_memo)
		       ? -1
		       : 0;
}
