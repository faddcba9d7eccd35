/* Runs a task graph from its image in device memory: one launch of one work-group walks the tasks in order.
 *
 * `OpenCLDispatcher` puts its constants before this text, and behind it `_graph_opencl_check.cl`, `_graph_opencl_run.cl`
 * and the caller's operations. Nothing of the image is
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
    ushort region; /* of a parameter or a part of one: which */
    uchar ndim, zeros[3];
    long value;
    int shape[4];
} GraphOperand;

typedef struct {
    ulong fingerprint, offset, nbytes;
    uint where, zero;
} GraphDefinition;

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
enum { KIND_TENSOR, KIND_INT, KIND_FLOAT, KIND_PARAMETER };
enum { TASK_KERNEL, TASK_REPLAY };
/* The tail of an image are the Definitions that it carries, that of a Definition its parameters. */
enum { USER, REGIONS, TASKS, FANIN, ARGS, OPERANDS, DEFINITIONS, TAIL, N_SECTIONS };

constant uchar ITEM_NBYTES[12] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8};
constant uint RECORD_NBYTES[N_SECTIONS] = {1, 32, 24, 4, 4, 32, 32, 1};

#define HEADER_NBYTES 192UL
#define MAX_NBYTES (1UL << 52)
#define MAX_EXPANDED (1UL << 22)
#define CARRIED 0

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

/* In local memory: the code, the place, and the value in two halves. The first lane that claims the code keeps it. In
 * the code's upper half is the owner: 0 for the image, 1 and more for its Definitions. */
void refuse(local int *status, int code, uint place, ulong value) {
    if (atomic_cmpxchg(&status[0], DONE, code) == DONE) {
        status[1] = (int)place;
        status[2] = (int)value;
        status[3] = (int)(value >> 32);
    }
}

/* -- an image or a Definition, whose header is known to be good -------------------------------------------------- */

typedef struct {
    global uchar *start[GRAPH_N_REGIONS];
    ulong nbytes[GRAPH_N_REGIONS];
} GraphMemory;

typedef struct {
    int owner; /* to be added to a code */
    ulong user_start, user_end, carried_start, carried_end;
    global const GraphRegion *regions;
    global const GraphTask *tasks;
    global const int *fanin, *args;
    global const GraphOperand *operands, *parameters;
    global const GraphDefinition *definitions;
    ulong n_regions, n_tasks, n_fanin, n_args, n_operands, n_definitions, n_parameters;
} Graph;

Graph graph_at(global const uchar *bytes, int owner) {
    global const ulong *places = (global const ulong *)bytes + 8;
    const bool is_image = owner == 0;
    Graph graph;
    graph.owner = owner;
    graph.user_start = is_image ? places[2 * USER] : 0; /* a Definition has no inputs of its own */
    graph.user_end = is_image ? places[2 * USER] + places[2 * USER + 1] : 0;
    graph.regions = (global const GraphRegion *)(bytes + places[2 * REGIONS]);
    graph.tasks = (global const GraphTask *)(bytes + places[2 * TASKS]);
    graph.fanin = (global const int *)(bytes + places[2 * FANIN]);
    graph.args = (global const int *)(bytes + places[2 * ARGS]);
    graph.operands = (global const GraphOperand *)(bytes + places[2 * OPERANDS]);
    graph.definitions = (global const GraphDefinition *)(bytes + places[2 * DEFINITIONS]);
    graph.parameters = (global const GraphOperand *)(bytes + places[2 * TAIL]);
    graph.n_regions = places[2 * REGIONS + 1];
    graph.n_tasks = places[2 * TASKS + 1];
    graph.n_fanin = places[2 * FANIN + 1];
    graph.n_args = places[2 * ARGS + 1];
    graph.n_operands = places[2 * OPERANDS + 1];
    graph.n_definitions = places[2 * DEFINITIONS + 1];
    graph.n_parameters = is_image ? 0 : places[2 * TAIL + 1];
    graph.carried_start = places[2 * TAIL];
    graph.carried_end = places[2 * TAIL] + places[2 * TAIL + 1];
    return graph;
}

int owner_of(ulong definition) { return (int)min(definition + 1, 0x7FFFUL) << 16; }

/* A Definition of the image whose place there is known to be good. */
Graph definition_at(global const uchar *image, const Graph *graph, ulong number) {
    return graph_at(image + graph->definitions[number].offset, owner_of(number));
}

/* An operand of a Definition's task, with what the image's task `replay` binds in the place of a parameter. */
GraphOperand bound_operand(const Graph *graph, const Graph *definition, const GraphTask *replay, ulong arg) {
    GraphOperand operand = definition->operands[definition->args[arg]];
    if (operand.kind == KIND_PARAMETER) {
        const GraphOperand given = graph->operands[graph->args[replay->arg_start + operand.region]];
        operand.kind = given.kind;
        operand.region = given.region;
        operand.value += given.value; /* a part's offset; of a number it is 0, so that its bits stay as they are */
    }
    return operand;
}
