/* Runs a task graph from its image in device memory: one launch of one work-group walks the tasks in order.
 *
 * `OpenCLDispatcher` puts its constants before this text and the caller's operations behind it. Nothing of the image is
 * believed: each field is compared with its bound before it is used, the same fields with the same bounds as on the host
 * (`async_orch.graph.execute`), so no damaged image makes an access out of bounds. The layout is documented there.
 *
 * The lanes of the work-group (GRAPH_LANES of them, 1 on a CPU) share out the elements of each operation. They meet
 * between two tasks and nowhere else, so an operation may not let one lane read what another writes.
 */

typedef struct {
    uchar name[24];
    ulong nbytes;
} GraphRegion;

typedef struct {
    ushort kind, flags;
    uint kernel_id, fanin_start, fanin_count, arg_start, arg_count;
} GraphTask;

typedef struct {
    uchar kind, dtype;
    ushort region;
    uchar ndim, zeros[3];
    long value;
    int shape[4];
} GraphOperand;

/* One argument of an operation. A tensor's elements are contiguous and lie within its region, all `length` of them. */
typedef struct {
    bool is_tensor;
    int dtype, ndim;
    int shape[4];
    long length;
    global uchar *data;
    long integer; /* an int scalar's value */
    float real;   /* a float scalar's value */
} Arg;

enum {
    DTYPE_BOOL, DTYPE_U8, DTYPE_I8, DTYPE_U16, DTYPE_I16, DTYPE_U32, DTYPE_I32, DTYPE_U64, DTYPE_I64,
    DTYPE_F16, DTYPE_F32, DTYPE_F64
};
enum { KIND_TENSOR, KIND_INT, KIND_FLOAT };
enum { USER, REGIONS, TASKS, FANIN, ARGS, OPERANDS, N_SECTIONS = 6 };

constant uchar ITEM_NBYTES[12] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8};
constant uint RECORD_NBYTES[N_SECTIONS] = {1, 32, 24, 4, 4, 32};

#define HEADER_NBYTES 192UL
#define MAX_NBYTES (1UL << 52)

/* An operation returns false to refuse its arguments; the graph then ends there, and the status says which task. */
#define OPERATION(name) bool operation_##name(const Arg *arg, uint n_args, uint lane, uint lanes)
#define REQUIRE(condition) \
    do { \
        if (!(condition)) return false; \
    } while (0)

bool is_f32(const Arg *arg, int ndim) { return arg->is_tensor && arg->dtype == DTYPE_F32 && arg->ndim == ndim; }
bool is_i32(const Arg *arg, int ndim) { return arg->is_tensor && arg->dtype == DTYPE_I32 && arg->ndim == ndim; }
global float *f32(const Arg *arg) { return (global float *)arg->data; }
global int *i32(const Arg *arg) { return (global int *)arg->data; }

/* Whether two tensors share no byte: to be required of an output and of indices that are read after it is written. */
bool are_apart(const Arg *a, const Arg *b) {
    return a->data + a->length * ITEM_NBYTES[a->dtype] <= b->data || b->data + b->length * ITEM_NBYTES[b->dtype] <= a->data;
}

/* -- what went wrong first ------------------------------------------------------------------------------------- */

/* In local memory: the code, the place, and the value in two halves. The first lane that claims the code keeps it. */
void refuse(local int *status, int code, uint place, ulong value) {
    if (atomic_cmpxchg(&status[0], DONE, code) == DONE) {
        status[1] = (int)place;
        status[2] = (int)value;
        status[3] = (int)(value >> 32);
    }
}

/* -- the header, by one lane ----------------------------------------------------------------------------------- */

typedef struct {
    ulong offset[N_SECTIONS], count[N_SECTIONS];
} GraphSections;

uint graph_crc(uint crc, global const uchar *bytes, ulong nbytes) {
    crc = ~crc;
    for (ulong i = 0; i < nbytes; ++i) crc = CRC_TABLE[(crc ^ bytes[i]) & 255] ^ (crc >> 8);
    return ~crc;
}

bool header_is_good(global const uchar *image, ulong memory_nbytes, local int *status) {
    global const uint *words = (global const uint *)image;
    global const ulong *longs = (global const ulong *)image;
    if (memory_nbytes < HEADER_NBYTES) {
        refuse(status, BAD_IMAGE_NBYTES, 0, memory_nbytes);
        return false;
    }
    const ulong nbytes = longs[2];
    if (longs[0] != GRAPH_MAGIC) refuse(status, BAD_MAGIC, 0, longs[0]);
    else if (words[2] != GRAPH_VERSION) refuse(status, BAD_VERSION, 0, words[2]);
    else if (words[3] != HEADER_NBYTES) refuse(status, BAD_HEADER_NBYTES, 0, words[3]);
    else if (nbytes < HEADER_NBYTES || nbytes > memory_nbytes) refuse(status, BAD_IMAGE_NBYTES, 0, nbytes);
    else if (words[7]) refuse(status, BAD_FLAGS, 0, words[7]);
    else if (longs[5] | longs[6] | longs[7]) refuse(status, BAD_RESERVED, 0, longs[5] | longs[6] | longs[7]);
    else if (longs[4] != GRAPH_TABLE) refuse(status, BAD_TABLE, 0, longs[4]);
    else {
        ulong end = HEADER_NBYTES;
        for (uint i = 0; i < 8; ++i) {
            const ulong offset = longs[8 + 2 * i], count = longs[9 + 2 * i];
            if (i >= N_SECTIONS) {
                if (offset | count) {
                    refuse(status, BAD_DEFINITIONS, i, offset | count);
                    return false;
                }
            } else if (offset % 64 || offset < end || offset > nbytes) {
                refuse(status, BAD_SECTION, i, offset);
                return false;
            } else if (count > (nbytes - offset) / RECORD_NBYTES[i] || (i == REGIONS && (!count || count > GRAPH_N_REGIONS))) {
                refuse(status, BAD_COUNT, i, count);
                return false;
            } else {
                end = offset + count * RECORD_NBYTES[i];
            }
        }
#if GRAPH_CHECKSUM
        const ulong pools = longs[8 + 2 * REGIONS];
        uint crc = graph_crc(0, image, 24);
        crc = graph_crc(crc, image + 28, HEADER_NBYTES - 28);
        crc = graph_crc(crc, image + pools, nbytes - pools);
        if (crc != words[6]) {
            refuse(status, BAD_CHECKSUM, 0, words[6]);
            return false;
        }
#endif
        return true;
    }
    return false;
}

/* -- the pools, shared out over the lanes ---------------------------------------------------------------------- */

typedef struct {
    global const GraphRegion *regions;
    global const GraphTask *tasks;
    global const int *fanin, *args;
    global const GraphOperand *operands;
    ulong n_regions, n_tasks, n_fanin, n_args, n_operands;
    ulong user_start, user_end;
    global uchar *memory[GRAPH_N_REGIONS];
    ulong nbytes[GRAPH_N_REGIONS];
} Graph;

void check_regions(const Graph *graph, local int *status) {
    for (uint i = 0; i < graph->n_regions; ++i) {
        for (uint j = 0; j < 24; ++j)
            if (graph->regions[i].name[j] != REGION_NAMES[i][j]) {
                refuse(status, BAD_REGION_NAME, i, graph->regions[i].name[j]);
                break;
            }
        if (i && graph->regions[i].nbytes > graph->nbytes[i])
            refuse(status, BAD_REGION_NBYTES, i, graph->regions[i].nbytes);
    }
}

void check_task(const Graph *graph, uint i, local int *status) {
    const GraphTask task = graph->tasks[i];
    ulong fanin_start = 0, arg_start = 0;
    if (i) {
        const GraphTask before = graph->tasks[i - 1];
        fanin_start = (ulong)before.fanin_start + before.fanin_count;
        arg_start = (ulong)before.arg_start + before.arg_count;
    }
    const ulong fanin_end = fanin_start + task.fanin_count, arg_end = arg_start + task.arg_count;
    const bool is_last = i + 1 == graph->n_tasks;
    if (task.kind) refuse(status, BAD_TASK_KIND, i, task.kind);
    else if (task.flags) refuse(status, BAD_TASK_FLAGS, i, task.flags);
    else if (task.kernel_id >= GRAPH_N_KERNELS) refuse(status, BAD_KERNEL, i, task.kernel_id);
    else if (task.fanin_start != fanin_start || fanin_end > graph->n_fanin) refuse(status, BAD_FANIN_START, i, task.fanin_start);
    else if (task.arg_start != arg_start || arg_end > graph->n_args) refuse(status, BAD_ARG_START, i, task.arg_start);
    else if (is_last && fanin_end != graph->n_fanin) refuse(status, BAD_FANIN_COUNT, i, fanin_end);
    else if (is_last && arg_end != graph->n_args) refuse(status, BAD_ARG_COUNT, i, arg_end);
    else if (task.arg_count > GRAPH_MAX_ARGS) refuse(status, BAD_ARG_COUNT, i, task.arg_count);
    else if (ARITIES[task.kernel_id] >= 0 && (uint)ARITIES[task.kernel_id] != task.arg_count)
        refuse(status, BAD_ARG_COUNT, i, task.arg_count);
    else {
        for (ulong j = fanin_start; j < fanin_end; ++j)
            if (graph->fanin[j] < 0 || graph->fanin[j] >= (long)i) refuse(status, BAD_FANIN, (uint)j, (ulong)(long)graph->fanin[j]);
        for (uint j = 0; j < task.arg_count; ++j) {
            const int operand = graph->args[arg_start + j];
            if (operand < 0 || operand >= (long)graph->n_operands) {
                refuse(status, BAD_ARG, (uint)(arg_start + j), (ulong)(long)operand);
            } else if (j < 62 && (OUTPUTS[task.kernel_id] >> j & 1)) {
                if (graph->operands[operand].kind != KIND_TENSOR || graph->operands[operand].region == 0)
                    refuse(status, BAD_OUTPUT, (uint)(arg_start + j), (ulong)(long)operand);
            }
        }
    }
}

void check_operand(const Graph *graph, uint i, local int *status) {
    const GraphOperand operand = graph->operands[i];
    if (operand.kind > KIND_FLOAT) refuse(status, BAD_KIND, i, operand.kind);
    else if (operand.dtype > DTYPE_F64) refuse(status, BAD_DTYPE, i, operand.dtype);
    else if (operand.region >= graph->n_regions) refuse(status, BAD_REGION, i, operand.region);
    else if (operand.ndim > 4) refuse(status, BAD_NDIM, i, operand.ndim);
    else if (operand.zeros[0] | operand.zeros[1] | operand.zeros[2]) refuse(status, BAD_ZEROS, i, operand.zeros[0]);
    else {
        ulong extent = ITEM_NBYTES[operand.dtype];
        bool is_empty = false;
        for (int d = 0; d < 4; ++d) {
            const int size = operand.shape[d];
            if (size < 0 || (d >= operand.ndim && size != 1) || (size && extent > MAX_NBYTES / (ulong)size)) {
                refuse(status, BAD_SHAPE, i, (ulong)(long)size);
                return;
            }
            is_empty |= size == 0;
            extent *= size ? (ulong)size : 1;
        }
        if (operand.kind != KIND_TENSOR) return;
        const ulong nbytes = is_empty ? 0 : extent;
        const ulong first = operand.region ? 0 : graph->user_start;
        const ulong end = operand.region ? graph->nbytes[operand.region] : graph->user_end;
        const ulong offset = (ulong)operand.value; /* a negative one is beyond any end */
        if (offset < first || offset > end || nbytes > end - offset || offset % ITEM_NBYTES[operand.dtype])
            refuse(status, BAD_OFFSET, i, offset);
    }
}

/* -- running --------------------------------------------------------------------------------------------------- */

Arg argument(const Graph *graph, uint at) {
    const GraphOperand operand = graph->operands[graph->args[at]];
    Arg arg;
    arg.is_tensor = operand.kind == KIND_TENSOR;
    arg.dtype = operand.dtype;
    arg.ndim = operand.ndim;
    arg.length = 1;
    for (int d = 0; d < 4; ++d) {
        arg.shape[d] = operand.shape[d];
        arg.length *= operand.shape[d];
    }
    arg.data = arg.is_tensor ? graph->memory[operand.region] + operand.value : graph->memory[0];
    arg.integer = operand.kind == KIND_INT ? operand.value : 0;
    arg.real = operand.kind == KIND_FLOAT ? (float)as_double(operand.value) : 0.0f;
    return arg;
}

bool call_operation(uint kernel_id, const Arg *arg, uint n_args, uint lane, uint lanes);

kernel __attribute__((reqd_work_group_size(GRAPH_LANES, 1, 1)))
void run_graph(global uchar *image, ulong image_nbytes, global uchar *status_memory, ulong status_offset GRAPH_PARAMETERS) {
    const uint lane = (uint)get_local_id(0), lanes = GRAPH_LANES;
    local int status[4];
    if (lane == 0) {
        status[0] = DONE;
        status[1] = status[2] = status[3] = 0;
        header_is_good(image, image_nbytes, status);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    bool stop = status[0] != DONE;
    barrier(CLK_LOCAL_MEM_FENCE);

    Graph graph;
    if (!stop) {
        global const ulong *places = (global const ulong *)image + 8;
        graph.regions = (global const GraphRegion *)(image + places[2 * REGIONS]);
        graph.tasks = (global const GraphTask *)(image + places[2 * TASKS]);
        graph.fanin = (global const int *)(image + places[2 * FANIN]);
        graph.args = (global const int *)(image + places[2 * ARGS]);
        graph.operands = (global const GraphOperand *)(image + places[2 * OPERANDS]);
        graph.n_regions = places[2 * REGIONS + 1];
        graph.n_tasks = places[2 * TASKS + 1];
        graph.n_fanin = places[2 * FANIN + 1];
        graph.n_args = places[2 * ARGS + 1];
        graph.n_operands = places[2 * OPERANDS + 1];
        graph.user_start = places[2 * USER];
        graph.user_end = graph.user_start + places[2 * USER + 1];
        graph.memory[0] = image;
        graph.nbytes[0] = image_nbytes;
        GRAPH_MEMORY
        if (lane == 0) {
            check_regions(&graph, status);
            if (graph.n_tasks == 0 && graph.n_fanin) refuse(status, BAD_FANIN_COUNT, 0, 0);
            if (graph.n_tasks == 0 && graph.n_args) refuse(status, BAD_ARG_COUNT, 0, 0);
        }
        for (ulong i = lane; i < graph.n_tasks; i += lanes) check_task(&graph, (uint)i, status);
        for (ulong i = lane; i < graph.n_operands; i += lanes) check_operand(&graph, (uint)i, status);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    stop = status[0] != DONE;
    barrier(CLK_LOCAL_MEM_FENCE);

    for (uint i = 0; !stop && i < graph.n_tasks; ++i) {
        const GraphTask task = graph.tasks[i];
        Arg args[GRAPH_MAX_ARGS];
        for (uint j = 0; j < task.arg_count; ++j) args[j] = argument(&graph, task.arg_start + j);
        if (!call_operation(task.kernel_id, args, task.arg_count, lane, lanes)) refuse(status, REFUSED, i, task.kernel_id);
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        stop = status[0] != DONE;
        barrier(CLK_LOCAL_MEM_FENCE); /* all lanes have looked before one can refuse the next task */
    }
    if (lane < 4)
        for (uint i = lane; i < 4; i += lanes) ((global int *)(status_memory + status_offset))[i] = status[i];
}
