/* The kernel: checks, then runs the tasks as listed; behind `_graph_opencl_check.cl`. */

bool call_operation(uint kernel_id, const Arg *arg, uint n_args, uint lane, uint lanes);

Arg argument(const GraphOperand *operand, const GraphMemory *memory) {
    Arg arg;
    arg.is_tensor = operand->kind == KIND_TENSOR;
    arg.dtype = operand->dtype;
    arg.ndim = operand->ndim;
    arg.length = 1;
    for (int d = 0; d < 4; ++d) {
        arg.shape[d] = operand->shape[d];
        arg.length *= operand->shape[d];
    }
    arg.data = arg.is_tensor ? memory->start[operand->region] + operand->value : memory->start[0];
    arg.integer = operand->kind == KIND_INT ? operand->value : 0;
    arg.real = operand->kind == KIND_FLOAT ? (float)as_double(operand->value) : 0.0f;
    return arg;
}

/* Whether all is well, for all lanes together: none goes on before all have looked. */
bool all_is_well(local int *status) {
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const bool is_well = status[0] == DONE;
    barrier(CLK_LOCAL_MEM_FENCE);
    return is_well;
}

kernel __attribute__((reqd_work_group_size(GRAPH_LANES, 1, 1)))
void run_graph(global uchar *image, ulong image_nbytes, global uchar *status_memory, ulong status_offset GRAPH_PARAMETERS) {
    const uint lane = (uint)get_local_id(0), lanes = GRAPH_LANES;
    local int status[4];
    GraphMemory memory;
    memory.start[0] = image;
    memory.nbytes[0] = image_nbytes;
    GRAPH_MEMORY
    if (lane == 0) {
        status[0] = DONE;
        status[1] = status[2] = status[3] = 0;
        if (header_is_good(image, image_nbytes, 0, status) && checksum_is_good(image, status)) {
            const Graph own = graph_at(image, 0);
            check_regions(&own, &memory, status);
            check_definitions(image, &own, status);
        }
    }
    bool goes_on = all_is_well(status);
    Graph graph;
    if (goes_on) {
        graph = graph_at(image, 0);
        check_pools(&graph, &memory, lane, lanes, status);
        for (ulong i = 0; i < graph.n_definitions; ++i) {
            const Graph definition = definition_at(image, &graph, i);
            check_pools(&definition, &memory, lane, lanes, status);
        }
    }
    goes_on = all_is_well(status);
    if (goes_on) {
        if (is_too_large(image, &graph)) refuse(status, BAD_EXPANDED, 0, graph.n_tasks);
        else
            for (ulong i = lane; i < graph.n_tasks; i += lanes)
                if (graph.tasks[i].kind == TASK_REPLAY) check_replay(image, &graph, (uint)i, status);
    }
    goes_on = all_is_well(status);

    for (uint i = 0; goes_on && i < graph.n_tasks; ++i) {
        const GraphTask task = graph.tasks[i];
        const bool is_replay = task.kind == TASK_REPLAY;
        Graph definition = graph;
        if (is_replay) definition = definition_at(image, &graph, task.kernel_id);
        const ulong n_calls = is_replay ? definition.n_tasks : 1;
        for (uint j = 0; goes_on && j < n_calls; ++j) {
            const GraphTask call = is_replay ? definition.tasks[j] : task;
            Arg args[GRAPH_MAX_ARGS];
            for (uint k = 0; k < call.arg_count; ++k) {
                const ulong at = (ulong)call.arg_start + k;
                const GraphOperand operand =
                    is_replay ? bound_operand(&graph, &definition, &task, at) : graph.operands[graph.args[at]];
                args[k] = argument(&operand, &memory);
            }
            if (!call_operation(call.kernel_id, args, call.arg_count, lane, lanes)) {
                const ulong position = is_replay ? j + 1UL : 0UL;
                refuse(status, REFUSED, i, position << 32 | call.kernel_id);
            }
            goes_on = all_is_well(status);
        }
    }
    if (lane < 4)
        for (uint i = lane; i < 4; i += lanes) ((global int *)(status_memory + status_offset))[i] = status[i];
}
