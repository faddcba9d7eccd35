/* What is compared with its bound before the first task of a graph runs; behind `_graph_opencl.cl`. */

/* -- headers, by one lane -------------------------------------------------------------------------------------- */

uint graph_crc(uint crc, global const uchar *bytes, ulong nbytes) {
    crc = ~crc;
    for (ulong i = 0; i < nbytes; ++i) crc = CRC_TABLE[(crc ^ bytes[i]) & 255] ^ (crc >> 8);
    return ~crc;
}

bool sections_are_good(global const uchar *bytes, ulong nbytes, int owner, local int *status) {
    global const ulong *places = (global const ulong *)bytes + 8;
    ulong end = HEADER_NBYTES;
    for (uint i = 0; i < N_SECTIONS; ++i) {
        const ulong offset = places[2 * i], count = places[2 * i + 1];
        const uint record_nbytes = owner && i == TAIL ? (uint)sizeof(GraphOperand) : RECORD_NBYTES[i];
        if (i >= DEFINITIONS && !offset && !count) continue;
        if (offset % 64 || offset < end || offset > nbytes) {
            refuse(status, owner | BAD_SECTION, i, offset);
            return false;
        }
        const bool wrong = i == REGIONS && (!count || count > GRAPH_N_REGIONS);
        if (wrong || count > (nbytes - offset) / record_nbytes) {
            refuse(status, owner | BAD_COUNT, i, count);
            return false;
        }
        end = offset + count * record_nbytes;
    }
    return true;
}

bool header_is_good(global const uchar *bytes, ulong memory_nbytes, int owner, local int *status) {
    global const uint *words = (global const uint *)bytes;
    global const ulong *longs = (global const ulong *)bytes;
    if (memory_nbytes < HEADER_NBYTES) {
        refuse(status, owner | BAD_IMAGE_NBYTES, 0, memory_nbytes);
        return false;
    }
    const ulong nbytes = longs[2];
    const ulong magic = owner ? GRAPH_DEFINITION_MAGIC : GRAPH_MAGIC;
    if (longs[0] != magic) refuse(status, owner | BAD_MAGIC, 0, longs[0]);
    else if (words[2] != GRAPH_VERSION) refuse(status, owner | BAD_VERSION, 0, words[2]);
    else if (words[3] != HEADER_NBYTES) refuse(status, owner | BAD_HEADER_NBYTES, 0, words[3]);
    else if (nbytes < HEADER_NBYTES || nbytes > memory_nbytes) refuse(status, owner | BAD_IMAGE_NBYTES, 0, nbytes);
    else if (words[7]) refuse(status, owner | BAD_FLAGS, 0, words[7]);
    else if (longs[5] | longs[6] | longs[7]) refuse(status, owner | BAD_RESERVED, 0, longs[5] | longs[6] | longs[7]);
    else if (longs[4] != GRAPH_TABLE) refuse(status, owner | BAD_TABLE, 0, longs[4]);
    else return sections_are_good(bytes, nbytes, owner, status);
    return false;
}

/* The image's: it covers the Definitions that the image carries. */
bool checksum_is_good(global const uchar *image, local int *status) {
#if GRAPH_CHECKSUM
    const ulong nbytes = ((global const ulong *)image)[2], pools = ((global const ulong *)image)[8 + 2 * REGIONS];
    const uint wanted = ((global const uint *)image)[6];
    uint crc = graph_crc(0, image, 24);
    crc = graph_crc(crc, image + 28, HEADER_NBYTES - 28);
    crc = graph_crc(crc, image + pools, nbytes - pools);
    if (crc != wanted) {
        refuse(status, BAD_CHECKSUM, 0, wanted);
        return false;
    }
#endif
    return true;
}

/* -- operands --------------------------------------------------------------------------------------------------- */

/* The bytes of a tensor of this shape and dtype, which is below 12; ULONG_MAX for a shape that cannot be. */
ulong tensor_nbytes(const GraphOperand *operand) {
    ulong extent = ITEM_NBYTES[operand->dtype];
    bool is_empty = false;
    for (int d = 0; d < 4; ++d) {
        const int size = operand->shape[d];
        if (size < 0 || (d >= operand->ndim && size != 1) || (size && extent > MAX_NBYTES / (ulong)size)) return ULONG_MAX;
        is_empty |= size == 0;
        extent *= size ? (ulong)size : 1;
    }
    return is_empty ? 0 : extent;
}

/* Kind, dtype, number of dimensions, padding and shape; `place` is what to say of them. */
bool record_is_good(const GraphOperand *operand, int last_kind, int owner, uint place, local int *status) {
    if (operand->kind > last_kind) refuse(status, owner | BAD_KIND, place, operand->kind);
    else if (operand->dtype > DTYPE_F64) refuse(status, owner | BAD_DTYPE, place, operand->dtype);
    else if (operand->ndim > 4) refuse(status, owner | BAD_NDIM, place, operand->ndim);
    else if (operand->zeros[0] | operand->zeros[1] | operand->zeros[2])
        refuse(status, owner | BAD_ZEROS, place, operand->zeros[0]);
    else if (tensor_nbytes(operand) == ULONG_MAX) refuse(status, owner | BAD_SHAPE, place, (ulong)(long)operand->shape[0]);
    else return true;
    return false;
}

/* A part of a parameter lies within a tensor of the parameter's shape, wherever that will be. */
bool part_is_good(const GraphOperand *part, const GraphOperand *whole) {
    if (whole->kind != KIND_TENSOR) return part->dtype == 0 && part->ndim == 0 && part->value == 0;
    const ulong item_nbytes = ITEM_NBYTES[part->dtype], nbytes = tensor_nbytes(part), end = tensor_nbytes(whole);
    const ulong offset = (ulong)part->value; /* a negative one is beyond any end */
    return item_nbytes <= ITEM_NBYTES[whole->dtype] && offset <= end && nbytes <= end - offset && offset % item_nbytes == 0;
}

void check_operand(const Graph *graph, const GraphMemory *memory, uint i, local int *status) {
    const GraphOperand operand = graph->operands[i];
    const bool is_part = operand.kind == KIND_PARAMETER;
    if (!record_is_good(&operand, graph->owner ? KIND_PARAMETER : KIND_FLOAT, graph->owner, i, status)) return;
    if (operand.region >= (is_part ? graph->n_parameters : graph->n_regions)) {
        refuse(status, graph->owner | BAD_REGION, i, operand.region);
    } else if (is_part) {
        const GraphOperand whole = graph->parameters[operand.region];
        if (!part_is_good(&operand, &whole)) refuse(status, graph->owner | BAD_OFFSET, i, (ulong)operand.value);
    } else if (operand.kind == KIND_TENSOR) {
        const ulong nbytes = tensor_nbytes(&operand);
        const ulong first = operand.region ? 0 : graph->user_start;
        const ulong end = operand.region ? memory->nbytes[operand.region] : graph->user_end;
        const ulong offset = (ulong)operand.value; /* a negative one is beyond any end */
        if (offset < first || offset > end || nbytes > end - offset || offset % ITEM_NBYTES[operand.dtype])
            refuse(status, graph->owner | BAD_OFFSET, i, offset);
    }
}

/* -- tasks ------------------------------------------------------------------------------------------------------ */

bool is_output(uint kernel_id, uint arg) { return arg < 62 && (OUTPUTS[kernel_id] >> arg & 1); }

void check_task(const Graph *graph, uint i, local int *status) {
    const GraphTask task = graph->tasks[i];
    const int owner = graph->owner;
    ulong fanin_start = 0, arg_start = 0;
    if (i) {
        const GraphTask before = graph->tasks[i - 1];
        fanin_start = (ulong)before.fanin_start + before.fanin_count;
        arg_start = (ulong)before.arg_start + before.arg_count;
    }
    const ulong fanin_end = fanin_start + task.fanin_count, arg_end = arg_start + task.arg_count;
    const bool is_last = i + 1 == graph->n_tasks, is_replay = task.kind == TASK_REPLAY;
    if (task.kind > (graph->n_definitions ? TASK_REPLAY : TASK_KERNEL)) refuse(status, owner | BAD_TASK_KIND, i, task.kind);
    else if (task.flags) refuse(status, owner | BAD_TASK_FLAGS, i, task.flags);
    else if (task.kernel_id >= (is_replay ? graph->n_definitions : GRAPH_N_KERNELS))
        refuse(status, owner | BAD_KERNEL, i, task.kernel_id);
    else if (task.fanin_start != fanin_start || fanin_end > graph->n_fanin)
        refuse(status, owner | BAD_FANIN_START, i, task.fanin_start);
    else if (task.arg_start != arg_start || arg_end > graph->n_args) refuse(status, owner | BAD_ARG_START, i, task.arg_start);
    else if (is_last && fanin_end != graph->n_fanin) refuse(status, owner | BAD_FANIN_COUNT, i, fanin_end);
    else if (is_last && arg_end != graph->n_args) refuse(status, owner | BAD_ARG_COUNT, i, arg_end);
    else if (!is_replay && task.arg_count > GRAPH_MAX_ARGS) refuse(status, owner | BAD_ARG_COUNT, i, task.arg_count);
    else if (!is_replay && ARITIES[task.kernel_id] >= 0 && (uint)ARITIES[task.kernel_id] != task.arg_count)
        refuse(status, owner | BAD_ARG_COUNT, i, task.arg_count);
    else {
        for (ulong j = fanin_start; j < fanin_end; ++j)
            if (graph->fanin[j] < 0 || graph->fanin[j] >= (long)i)
                refuse(status, owner | BAD_FANIN, (uint)j, (ulong)(long)graph->fanin[j]);
        for (uint j = 0; j < task.arg_count; ++j) {
            const int operand = graph->args[arg_start + j];
            if (operand < 0 || operand >= (long)graph->n_operands) {
                refuse(status, owner | BAD_ARG, (uint)(arg_start + j), (ulong)(long)operand);
            } else if (!owner && !is_replay && is_output(task.kernel_id, j)) { /* a Definition's: see check_replay */
                if (graph->operands[operand].kind != KIND_TENSOR || graph->operands[operand].region == 0)
                    refuse(status, owner | BAD_OUTPUT, (uint)(arg_start + j), (ulong)(long)operand);
            }
        }
    }
}

void check_pools(const Graph *graph, const GraphMemory *memory, uint lane, uint lanes, local int *status) {
    if (lane == 0 && graph->n_tasks == 0 && graph->n_fanin) refuse(status, graph->owner | BAD_FANIN_COUNT, 0, 0);
    if (lane == 0 && graph->n_tasks == 0 && graph->n_args) refuse(status, graph->owner | BAD_ARG_COUNT, 0, 0);
    for (ulong i = lane; i < graph->n_tasks; i += lanes) check_task(graph, (uint)i, status);
    for (ulong i = lane; i < graph->n_operands; i += lanes) check_operand(graph, memory, (uint)i, status);
}

void check_regions(const Graph *graph, const GraphMemory *memory, local int *status) {
    for (uint i = 0; i < graph->n_regions; ++i) {
        for (uint j = 0; j < 24; ++j)
            if (graph->regions[i].name[j] != REGION_NAMES[i][j]) {
                refuse(status, BAD_REGION_NAME, i, graph->regions[i].name[j]);
                break;
            }
        if (i && graph->regions[i].nbytes > memory->nbytes[i])
            refuse(status, BAD_REGION_NBYTES, i, graph->regions[i].nbytes);
    }
}

/* -- Definitions and replays ------------------------------------------------------------------------------------ */

/* The place, header, regions and parameters of each Definition, by one lane. */
void check_definitions(global const uchar *image, const Graph *graph, local int *status) {
    for (uint i = 0; i < graph->n_definitions; ++i) {
        const GraphDefinition record = graph->definitions[i];
        const int owner = owner_of(i);
        if (record.where != CARRIED || record.zero) {
            refuse(status, BAD_WHERE, i, record.where);
            return;
        }
        if (record.offset % 64 || record.offset < graph->carried_start || record.offset > graph->carried_end ||
            record.nbytes > graph->carried_end - record.offset) {
            refuse(status, BAD_PLACE, i, record.offset);
            return;
        }
        if (!header_is_good(image + record.offset, record.nbytes, owner, status)) return;
        const Graph definition = definition_at(image, graph, i);
        if (definition.n_definitions) refuse(status, owner | BAD_NESTED, 0, definition.n_definitions);
        bool differs = definition.n_regions != graph->n_regions;
        global const uchar *own = (global const uchar *)definition.regions, *wanted = (global const uchar *)graph->regions;
        for (ulong j = 0; !differs && j < graph->n_regions * sizeof(GraphRegion); ++j) differs = own[j] != wanted[j];
        if (differs) refuse(status, owner | BAD_REGIONS, 0, 0);
        for (uint j = 0; j < definition.n_parameters; ++j) {
            const GraphOperand parameter = definition.parameters[j];
            if (!record_is_good(&parameter, KIND_FLOAT, owner, j, status)) return;
            if (parameter.region || parameter.value) refuse(status, owner | BAD_PARAMETER, j, parameter.region);
        }
    }
}

/* Whether all replays together stay within what the host would take; the image's own records count, too. */
bool is_too_large(global const uchar *image, const Graph *graph) {
    ulong expanded = graph->n_tasks + graph->n_args + graph->n_operands;
    for (ulong i = 0; i < graph->n_tasks && expanded <= MAX_EXPANDED; ++i) {
        if (graph->tasks[i].kind != TASK_REPLAY) continue;
        const Graph definition = definition_at(image, graph, graph->tasks[i].kernel_id);
        expanded += definition.n_tasks + definition.n_args + definition.n_operands;
    }
    return expanded > MAX_EXPANDED;
}

/* What an image's task binds is like the parameters, and its Definition writes to memory outside the image. All pools
 * are known to be good. */
void check_replay(global const uchar *image, const Graph *graph, uint i, local int *status) {
    const GraphTask task = graph->tasks[i];
    const Graph definition = definition_at(image, graph, task.kernel_id);
    if (task.arg_count != definition.n_parameters) {
        refuse(status, BAD_BOUND_COUNT, i, task.arg_count);
        return;
    }
    for (uint j = 0; j < task.arg_count; ++j) {
        const GraphOperand given = graph->operands[graph->args[task.arg_start + j]], wanted = definition.parameters[j];
        bool differs = given.kind != wanted.kind;
        if (wanted.kind == KIND_TENSOR) {
            differs |= given.dtype != wanted.dtype || given.ndim != wanted.ndim;
            for (int d = 0; d < 4; ++d) differs |= given.shape[d] != wanted.shape[d];
        }
        if (differs) {
            refuse(status, BAD_BINDING, i, j);
            return;
        }
    }
    for (uint j = 0; j < definition.n_tasks; ++j) {
        const GraphTask call = definition.tasks[j];
        for (uint k = 0; k < call.arg_count; ++k) {
            if (!is_output(call.kernel_id, k)) continue;
            const GraphOperand operand = bound_operand(graph, &definition, &task, call.arg_start + k);
            if (operand.kind != KIND_TENSOR || operand.region == 0) refuse(status, BAD_REPLAY_OUTPUT, i, j);
        }
    }
}
