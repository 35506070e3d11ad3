/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What outlives a run of a program: the programs' own memory and what the tracer shares. */
#ifndef GPC_SHARED_H
#define GPC_SHARED_H

struct gpc_state {
	__u64 off_ns;	/* left the CPU; 0: it is on one */
	__u64 wake_ns;	/* made runnable since */
	__u64 early_ns; /* woken before it was asleep */
	__u64 arg;
	__u32 waker_tid, waker_tgid; /* preempted: who took the CPU */
	__u32 early_tid, early_tgid;
	__u32 op;
	__u32 epoch; /* announced in this epoch */
	__s16 nr, waker_nr, early_nr, fault_nr;
	__u8 kind, flags, early_flags, fault_flags;
	/* The page fault it is in; fault_ns 0: none. */
	__u32 fault_dev;
	__u64 fault_ns, fault_addr, fault_inode, fault_block_ns, fault_wake_ns;
	__u32 fault_tid, fault_tgid;
	/* A run of sched_yield calls; spin_turns 0: none. */
	__u64 spin_start_ns, spin_last_ns;
	__u32 spin_turns;
	__u32 cpu; /* it left */
	/* Whose account of throttled time is compared at the end; NULL: nobody's. */
	struct cfs_rq *queue;
	__u64 throttled_ns;
	__u64 due_ns; /* when the sleep it is in ends by itself; 0: unknown */
};

struct gpc_sum_key {
	__u32 tid, tgid, kind;
};

struct gpc_sum {
	__u64 count, sum_ns, runq_ns, max_ns, start_ns, end_ns;
};

/* The last long stays on a CPU, whoever's: the culprit need not be the last to run. */
#define GPC_STINTS 8
struct gpc_stint {
	__u64 end_ns, ran_ns;
	__u32 tid, tgid;
};

struct gpc_stints {
	struct gpc_stint ring[GPC_STINTS];
	__u64 next;
};

/* Another compiler must lay these out alike: the tracer reads some, and makes maps for all. */
_Static_assert(sizeof(struct gpc_state) == GPC_STATE_BYTES, "state of a thread");
_Static_assert(sizeof(struct gpc_sum_key) == GPC_SUM_KEY_BYTES, "key of a sum");
_Static_assert(sizeof(struct gpc_sum) == GPC_SUM_BYTES, "sum");
_Static_assert(sizeof(struct gpc_stints) == GPC_STINTS_BYTES, "stays on a CPU");
_Static_assert(sizeof(struct gpc_rec) == GPC_REC_BYTES, "record");

#ifndef GPC_BCC
/* Fixed at load; positions in layout.gen.h. */
const volatile __u64 gpc_config[GPC_CONFIG_WORDS] SEC(".rodata.config");
static const __u8 gpc_kind_of[GPC_KINDS] = GPC_KIND_TABLE;
/* Written by the tracer while the programs run. */
__u64 gpc_control[GPC_CONTROL_WORDS] SEC(".bss.control");
/* One bit a process id: plain memory, because every context switch looks here twice. */
__u64 gpc_targets[GPC_TARGET_WORDS] SEC(".bss.targets");
__u64 gpc_cpus[GPC_MAX_CPUS][GPC_CPU_WORDS] SEC(".bss.cpus");
struct gpc_stints gpc_stays[GPC_MAX_CPUS] SEC(".bss.stints");
/* One record at a time: a walk is over one task at a time and is never run twice at once. */
static struct gpc_rec gpc_walk_rec SEC(".bss.walk");

struct gpc_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* One ring a CPU: a ring shared by all costs three times as much when CPUs contend for it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct gpc_ring);
} gpc_rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gpc_state);
} gpc_states SEC(".maps");

struct gpc_sums {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPC_SUM_ENTRIES);
	__type(key, struct gpc_sum_key);
	__type(value, struct gpc_sum);
};

/* Two windows: the tracer reads one while waits are summed into the other. */
struct gpc_sums gpc_sums_even SEC(".maps");
struct gpc_sums gpc_sums_odd SEC(".maps");
#else
/* The same, made by the tracer; it puts their addresses where a program names them. */
#define gpc_config GPC_MEMORY(GPC_MAP_CONFIG, const volatile __u64, [GPC_CONFIG_WORDS])
#define gpc_kind_of GPC_MEMORY(GPC_MAP_KINDS, const __u8, [GPC_KINDS])
#define gpc_control GPC_MEMORY(GPC_MAP_CONTROL, __u64, [GPC_CONTROL_WORDS])
#define gpc_targets GPC_MEMORY(GPC_MAP_TARGETS, __u64, [GPC_TARGET_WORDS])
#define gpc_cpus GPC_MEMORY(GPC_MAP_CPUS, __u64, [GPC_MAX_CPUS][GPC_CPU_WORDS])
#define gpc_stays GPC_MEMORY(GPC_MAP_STINTS, struct gpc_stints, [GPC_MAX_CPUS])
#define gpc_walk_rec GPC_MEMORY(GPC_MAP_WALK, struct gpc_rec, [1])[0]
#define gpc_rings GPC_MAP(GPC_MAP_RINGS)
#define gpc_states GPC_MAP(GPC_MAP_STATES)
#define gpc_sums_even GPC_MAP(GPC_MAP_SUMS_EVEN)
#define gpc_sums_odd GPC_MAP(GPC_MAP_SUMS_ODD)
#endif

#endif
