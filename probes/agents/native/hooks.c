// SPDX-License-Identifier: Apache-2.0
/*
 * The type of a hook: what is put in a method's place. It is called like the method, looks like
 * it, and does what its kind of fast path does (paths.c).
 */
#include "hot.h"

#include <stddef.h>

struct gpc_names gpc_name;

/* Values in a row of each store that a hook of a kind works with, and the type of its memo. */
struct shape {
	const char *name;
	int rows, others;
	PyTypeObject **memo;
};

static const struct shape shapes[KINDS] = {
	[SPAN] = { "span", 5, 0, NULL },
	[STEP] = { "step", 0, 0, NULL },
	[EXECUTE] = { "execute", 10, 5, &gpc_types.steps_memo },
	[SAMPLE] = { "sample", 5, 5, &gpc_types.steps_memo },
	[UPDATE] = { "update", 8, 0, &gpc_types.steps_memo },
	[RUNNER_EXECUTE] = { "runner.execute", 7, 0, NULL },
	[RUNNER_SAMPLE] = { "runner.sample", 7, 0, NULL },
	[OUTPUTS] = { "outputs", 6, 0, &gpc_types.list_memo },
};

static PyObject *hook_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct hook *h = (struct hook *)self;
	PyObject *result;

	if (!h->part) {
		PyErr_SetString(PyExc_TypeError, "a hook that was not made");
		return NULL;
	}
	/* A step's first call attaches, dormant or not. */
	if (!h->part->on && h->kind != STEP)
		return PyObject_Call(h->original, args, kwargs);
	result = gpc_actions[h->kind](h, args, kwargs);
	if (gpc_kept && gpc_raise_kept())
		Py_CLEAR(result);
	return result;
}

static PyObject *method_type;

/* A method when it is found in a class. */
static PyObject *hook_get(PyObject *self, PyObject *of, PyObject *type)
{
	(void)type;
	if (!of || of == Py_None) {
		Py_INCREF(self);
		return self;
	}
	return PyObject_CallFunctionObjArgs(method_type, self, of, NULL);
}

/* Like a function it is copied as itself and pickled by its name. */
static PyObject *hook_reduce(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyObject_GetAttrString(self, "__qualname__");
}

static int find_kind(const char *name)
{
	for (int kind = 0; kind < KINDS; kind++)
		if (!strcmp(shapes[kind].name, name))
			return kind;
	return -1;
}

/* Whether it is a store of so many columns, where one is wanted. */
static int fits(PyObject *store, int columns)
{
	return !columns ||
	       (PyObject_TypeCheck(store, gpc_types.store) &&
		((struct gpc_store *)store)->width == columns * (Py_ssize_t)sizeof(long long));
}

/* Hook(kind, pure, original, part, drops, mark, follow, rows, others, memo, slow, slower) */
static int hook_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct hook *h = (struct hook *)self;
	PyObject *pure, *original, *part, *drops, *rows, *others, *memo, *slow, *slower;
	const char *name;
	long long mark;
	int kind, follow;

	(void)kwargs;
	if (h->pure) {
		PyErr_SetString(PyExc_TypeError, "a hook is made once");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "sOOO!O!LpOOOOO:Hook", &name, &pure, &original,
			      gpc_types.switch_, &part, gpc_types.counter, &drops, &mark, &follow,
			      &rows, &others, &memo, &slow, &slower))
		return -1;
	kind = find_kind(name);
	if (kind < 0 || !fits(rows, shapes[kind].rows) || !fits(others, shapes[kind].others) ||
	    (shapes[kind].memo && !PyObject_TypeCheck(memo, *shapes[kind].memo))) {
		PyErr_Format(PyExc_TypeError, "no hook %s of these", name);
		return -1;
	}
	h->kind = (enum kind)kind;
	h->mark = mark;
	h->follow = follow;
#define KEEP(field) (Py_INCREF(field), h->field = (void *)(field))
	KEEP(pure);
	KEEP(original);
	KEEP(part);
	KEEP(drops);
	KEEP(rows);
	KEEP(others);
	KEEP(memo);
	KEEP(slow);
	KEEP(slower);
#undef KEEP
	return 0;
}

static int hook_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct hook *h = (struct hook *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(h->pure);
	Py_VISIT(h->original);
	Py_VISIT(h->slow);
	Py_VISIT(h->slower);
	Py_VISIT(h->memo);
	Py_VISIT(h->dict);
	Py_VISIT(h->part);
	Py_VISIT(h->drops);
	Py_VISIT(h->rows);
	Py_VISIT(h->others);
	Py_VISIT(h->plain);
	return 0;
}

static int hook_clear(PyObject *self)
{
	struct hook *h = (struct hook *)self;

	/* A hook may still be called then; its cycles are broken where instances hold hooks. */
	Py_CLEAR(h->dict);
	return 0;
}

static void hook_dealloc(PyObject *self)
{
	struct hook *h = (struct hook *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	PyObject_GC_UnTrack(self);
	if (h->weak)
		PyObject_ClearWeakRefs(self);
	hook_clear(self);
	Py_XDECREF(h->pure);
	Py_XDECREF(h->original);
	Py_XDECREF(h->slow);
	Py_XDECREF(h->slower);
	Py_XDECREF(h->memo);
	Py_XDECREF(h->part);
	Py_XDECREF(h->drops);
	Py_XDECREF(h->rows);
	Py_XDECREF(h->others);
	Py_XDECREF(h->plain);
	release(self);
	Py_DECREF(type);
}

static PyMemberDef hook_members[] = {
	{ "__dictoffset__", T_PYSSIZET, offsetof(struct hook, dict), READONLY, NULL },
	{ "__weaklistoffset__", T_PYSSIZET, offsetof(struct hook, weak), READONLY, NULL },
	{ NULL, 0, 0, 0, NULL },
};
static PyGetSetDef hook_getset[] = {
	{ "__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};
static PyMethodDef hook_methods[] = {
	{ "__reduce__", hook_reduce, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};
static PyType_Slot hook_slots[] = {
	{ Py_tp_getset, hook_getset },	   { Py_tp_methods, hook_methods },
	{ Py_tp_init, hook_init },	   { Py_tp_call, hook_call },
	{ Py_tp_descr_get, hook_get },	   { Py_tp_members, hook_members },
	{ Py_tp_traverse, hook_traverse }, { Py_tp_clear, hook_clear },
	{ Py_tp_dealloc, hook_dealloc },   { 0, NULL },
};
/* Called with its instance as first argument, without a method object for each call. */
#define METHOD_DESCRIPTOR (1UL << 17)
static PyType_Spec hook_spec = {
	.name = "gpucorrelate.probes.agents._hot.Hook",
	.basicsize = sizeof(struct hook),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | METHOD_DESCRIPTOR,
	.slots = hook_slots,
};

int gpc_add_hooks(PyObject *module)
{
	PyObject *types = PyImport_ImportModule("types");

	method_type = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
	Py_XDECREF(types);
	if (!method_type)
		return -1;
#define X(name)                                            \
	gpc_name.name = PyUnicode_InternFromString(#name); \
	if (!gpc_name.name)                                \
		return -1;
	GPC_NAMES(X)
#undef X
	return gpc_add_type(module, &hook_spec, &gpc_types.hook);
}

/* As in hot.py; changes with what the two expect of each other. */
#define INTERFACE 1

static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT,
	.m_name = "gpucorrelate.probes.agents._hot",
	.m_doc = "The hooks' fast paths.",
	.m_size = -1,
};

PyMODINIT_FUNC PyInit__hot(void)
{
	PyObject *module = PyModule_Create(&module_def);

	if (module && (gpc_add_memos(module) || gpc_add_hooks(module) ||
		       PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)))
		Py_CLEAR(module);
	return module;
}
