/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Compiled by BCC on the host: no libbpf, no kernel headers, no global variables. The layout of
 * kernel types is in the text already, and of helpers and maps only numbers are known.
 */
#ifndef GPC_BCC_H
#define GPC_BCC_H

#define SEC(name)
#define GPC_LICENSE(text) _Static_assert(1, text) /* told when the program is loaded */
#define GPC_CORE
#define NULL ((void *)0)
#define __always_inline inline __attribute__((always_inline))
#define barrier() asm volatile("" ::: "memory")

/* Whether the running kernel's type has a field: from its BTF, as GPC_HAS_<type>_<field>. */
#define GPC_HAS(type, field) GPC_HAS_##type##_##field
#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)
#define bpf_core_type_size(type) sizeof(type)
#define bpf_core_read(to, size, from) bpf_probe_read_kernel(to, size, from)

/* BPF_PSEUDO_MAP_FD and BPF_PSEUDO_MAP_VALUE of include/uapi/linux/bpf.h */
__u64 gpc_pseudo(__u64 source, __u64 number) asm("llvm.bpf.pseudo");
#define GPC_MAP(slot) (*(char *)gpc_pseudo(1, GPC_MAP_MARK + (slot)))
#define GPC_MEMORY(slot, kind, size) (*(kind(*) size)gpc_pseudo(2, GPC_MAP_MARK + (slot)))

/* Numbers of include/uapi/linux/bpf.h, enum bpf_func_id */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 __u64 flags) = (void *)2;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_seq_write)(void *seq, const void *data, __u32 size) = (void *)127;
static void *(*const bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static __u64 (*const bpf_ringbuf_query)(void *ring, __u64 flags) = (void *)134;
static void *(*const bpf_task_storage_get)(void *map, void *task, void *value,
					   __u64 flags) = (void *)156;
static void *(*const bpf_get_current_task_btf)(void) = (void *)158;
static long (*const bpf_task_pt_regs)(void *task) = (void *)175;

/* BCC defines these names as another helper where it thinks that the kernel has not got them. */
static long (*const gpc_read_user)(void *to, __u32 size, const void *from) = (void *)112;
static long (*const gpc_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;
static long (*const gpc_read_string)(void *to, __u32 size, const void *from) = (void *)115;
#undef bpf_probe_read_user
#undef bpf_probe_read_kernel
#undef bpf_probe_read_kernel_str
#define bpf_probe_read_user gpc_read_user
#define bpf_probe_read_kernel gpc_read_kernel
#define bpf_probe_read_kernel_str gpc_read_string

/* A program with its tracepoint's arguments, which lie one a word in its context. */
#define GPC_ARGS_0(ctx)
#define GPC_ARGS_1(ctx) , (void *)(ctx)[0]
#define GPC_ARGS_2(ctx) GPC_ARGS_1(ctx), (void *)(ctx)[1]
#define GPC_ARGS_3(ctx) GPC_ARGS_2(ctx), (void *)(ctx)[2]
#define GPC_ARGS_OF(none, a, b, c, which, ...) which
#define GPC_ARGS(ctx, args...) \
	GPC_ARGS_OF(0, ##args, GPC_ARGS_3, GPC_ARGS_2, GPC_ARGS_1, GPC_ARGS_0)(ctx)
#define BPF_PROG(name, args...)                                                  \
	name(unsigned long long *ctx);                                           \
	static __always_inline int name##_body(unsigned long long *ctx, ##args); \
	int name(unsigned long long *ctx)                                        \
	{                                                                        \
		return name##_body(ctx GPC_ARGS(ctx, ##args));                   \
	}                                                                        \
	static __always_inline int name##_body(unsigned long long *ctx, ##args)

#endif
