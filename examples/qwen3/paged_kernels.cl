/* The kernels of `paged_kernels.py` as operations behind those of `kernels.cl`; shapes and formulas are those of the
 * Python functions of the same names. TILE, FROM_DEVICE and FROM_FEED come before this text, from `paged_steps.py`.
 *
 * The cache is [blocks, block size, kv heads, head_dim]. A block table says where a sequence's positions lie; a damaged
 * image could hold any, so each operation checks the entries that it will use before it uses the first.
 */

/* Whether these are keys and values in caches of one shape, no part of which is 0. */
bool are_caches(const Arg *keys, const Arg *values) {
    if (!is_f32(keys, 4) || !is_f32(values, 4)) return false;
    for (int d = 0; d < 4; ++d)
        if (keys->shape[d] != values->shape[d] || keys->shape[d] == 0) return false;
    return true;
}

/* Whether row `table` of `tables` has a block of the cache for each position before `end`. */
bool has_blocks(const Arg *cache, const Arg *tables, int table, long end) {
    const int size = cache->shape[1], width = tables->shape[1];
    global const int *blocks = i32(tables) + (long)table * width;
    if (end > (long)width * size) return false;
    for (long i = 0; i * size < end; ++i)
        if (blocks[i] < 0 || blocks[i] >= cache->shape[0]) return false;
    return true;
}

/* Whether `positions` has one for each of `n` rows, -1 or in the blocks of the row's own table. */
bool are_positions(const Arg *positions, int n, const Arg *cache, const Arg *tables) {
    if (!is_i32(positions, 1) || positions->shape[0] != n || !is_i32(tables, 2) || tables->shape[0] != n) return false;
    for (int i = 0; i < n; ++i)
        if (i32(positions)[i] < -1 || !has_blocks(cache, tables, i, (long)i32(positions)[i] + 1)) return false;
    return true;
}

/* Whether `tiles` has table, start and count of `n` rows in tiles, each of padding or in the blocks of its table. */
bool are_tiles(const Arg *tiles, int n, const Arg *cache, const Arg *tables) {
    if (!is_i32(tiles, 2) || tiles->shape[1] != 3 || !is_i32(tables, 2)) return false;
    if ((long)tiles->shape[0] * TILE != n) return false;
    for (int i = 0; i < n / TILE; ++i) {
        global const int *tile = i32(tiles) + 3 * i;
        const int table = tile[0], start = tile[1], count = tile[2];
        if (table == -1) continue;
        if (table < 0 || table >= tables->shape[0] || start < 0 || count < 0 || count > TILE) return false;
        if (!has_blocks(cache, tables, table, (long)start + count)) return false;
    }
    return true;
}

/* The position of a row of a tile; -1 where the tile or this row of it is padding. */
int position_in_tile(global const int *tile, int row) {
    return tile[0] >= 0 && row % TILE < tile[2] ? tile[1] + row % TILE : -1;
}

/* The element of the cache at which the vectors of all heads at a position begin. */
long place_in_cache(const Arg *cache, const Arg *tables, int table, int position) {
    const int size = cache->shape[1];
    const long block = i32(tables)[(long)table * tables->shape[1] + position / size];
    return (block * size + position % size) * cache->shape[2] * cache->shape[3];
}

/* Whether keys, values, k and v are what an append takes: rows of all heads, outputs apart from the indices. */
bool can_append(const Arg *arg) {
    if (!are_caches(&arg[0], &arg[1]) || !is_f32(&arg[2], 2) || !is_f32(&arg[3], 2)) return false;
    for (int d = 0; d < 2; ++d)
        if (arg[2].shape[d] != arg[3].shape[d]) return false;
    for (int out = 0; out < 2; ++out)
        if (!are_apart(&arg[out], &arg[4]) || !are_apart(&arg[out], &arg[5])) return false;
    return arg[2].shape[1] == (long)arg[0].shape[2] * arg[0].shape[3];
}

/* Element `i` of k and v goes to its place at the row's position. */
void append_element(const Arg *arg, long i, int table, int position) {
    if (position < 0) return;
    const long place = place_in_cache(&arg[0], &arg[4], table, position) + i % arg[2].shape[1];
    f32(&arg[0])[place] = f32(&arg[2])[i];
    f32(&arg[1])[place] = f32(&arg[3])[i];
}

/* Whether out and q have rows of heads that share the cache's evenly, and out lies apart from the indices. */
bool can_attend(const Arg *arg) {
    if (!is_f32(&arg[0], 2) || !is_f32(&arg[1], 2) || !are_caches(&arg[2], &arg[3])) return false;
    for (int d = 0; d < 2; ++d)
        if (arg[0].shape[d] != arg[1].shape[d]) return false;
    return arg[0].shape[1] % ((long)arg[2].shape[2] * arg[2].shape[3]) == 0 && are_apart(&arg[0], &arg[4]) &&
           are_apart(&arg[0], &arg[5]);
}

/* Head `head` of a row looks at all positions up to its own; zeros for padding. In one pass over the cache, as
 * `attention` in `decode_kernels.cl`, where its source is named. */
void attend_head(const Arg *arg, int row, int head, int table, int position) {
    const int kv_heads = arg[2].shape[2], head_dim = arg[2].shape[3], width = arg[0].shape[1];
    const int kv_head = head / (width / head_dim / kv_heads);
    global const float *q = f32(&arg[1]) + (long)row * width + head * head_dim;
    global float *out = f32(&arg[0]) + (long)row * width + head * head_dim;
    const float scale = rsqrt((float)head_dim);
    float largest = -INFINITY, sum = 0.0f;
    for (int j = 0; j < head_dim; ++j) out[j] = 0.0f;
    if (position < 0) return;
    for (int t = 0; t <= position; ++t) {
        const long place = place_in_cache(&arg[2], &arg[4], table, t) + kv_head * head_dim;
        const float score = scale * dot_product(q, f32(&arg[2]) + place, head_dim);
        const float shrink = score > largest ? exp(largest - score) : 1.0f;
        largest = fmax(largest, score);
        const float share = exp(score - largest);
        sum = sum * shrink + share;
        add_scaled(out, shrink, f32(&arg[3]) + place, share, head_dim);
    }
    for (int j = 0; j < head_dim; ++j) out[j] /= sum;
}

OPERATION(embed_next) { /* out, table, tokens, resident, fed, rows */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_i32(&arg[2], 1) && is_i32(&arg[3], 1) && is_i32(&arg[4], 1));
    const int n = arg[0].shape[0], hidden = arg[0].shape[1], vocab = arg[1].shape[0];
    REQUIRE(arg[1].shape[1] == hidden && arg[2].shape[0] == n && arg[4].shape[0] >= n);
    REQUIRE(are_indices_or_none(&arg[5], n, arg[3].shape[0]));
    for (int index = 2; index < 6; ++index) REQUIRE(are_apart(&arg[0], &arg[index]));
    for (int i = 0; i < n; ++i) {
        const int row = i32(&arg[5])[i];
        int token = i32(&arg[2])[i];
        if (token == FROM_FEED) token = i32(&arg[4])[i];
        else if (token == FROM_DEVICE && row >= 0) token = i32(&arg[3])[row];
        REQUIRE(row < 0 || (token >= 0 && token < vocab));
        for (int j = lane; j < hidden; j += lanes)
            f32(&arg[0])[(long)i * hidden + j] = row < 0 ? 0.0f : f32(&arg[1])[(long)token * hidden + j];
    }
    return true;
}

OPERATION(embed_prompt) { /* out, table, tokens */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2));
    const int n = arg[0].shape[0], hidden = arg[0].shape[1];
    REQUIRE(arg[1].shape[1] == hidden && are_indices_or_none(&arg[2], n, arg[1].shape[0]));
    REQUIRE(are_apart(&arg[0], &arg[2]));
    for (int i = 0; i < n; ++i) {
        const int token = i32(&arg[2])[i];
        for (int j = lane; j < hidden; j += lanes)
            f32(&arg[0])[(long)i * hidden + j] = token < 0 ? 0.0f : f32(&arg[1])[(long)token * hidden + j];
    }
    return true;
}

OPERATION(linear_tiles) { /* out, x, weight: here a row's sums do not depend on their number, so it is the same */
    REQUIRE(is_f32(&arg[0], 2) && arg[0].shape[0] % TILE == 0);
    return operation_linear(arg, n_args, lane, lanes);
}

OPERATION(paged_append) { /* keys, values, k, v, tables, positions */
    REQUIRE(can_append(arg) && are_positions(&arg[5], arg[2].shape[0], &arg[0], &arg[4]));
    for (long i = lane; i < arg[2].length; i += lanes) {
        const int row = i / arg[2].shape[1];
        append_element(arg, i, row, i32(&arg[5])[row]);
    }
    return true;
}

OPERATION(tile_append) { /* keys, values, k, v, tables, tiles */
    REQUIRE(can_append(arg) && are_tiles(&arg[5], arg[2].shape[0], &arg[0], &arg[4]));
    for (long i = lane; i < arg[2].length; i += lanes) {
        const int row = i / arg[2].shape[1];
        global const int *tile = i32(&arg[5]) + 3 * (row / TILE);
        append_element(arg, i, tile[0], position_in_tile(tile, row));
    }
    return true;
}

OPERATION(paged_attention) { /* out, q, keys, values, tables, positions */
    REQUIRE(can_attend(arg) && are_positions(&arg[5], arg[0].shape[0], &arg[2], &arg[4]));
    const int heads = arg[0].shape[1] / arg[2].shape[3];
    for (long i = lane; i < (long)arg[0].shape[0] * heads; i += lanes) {
        const int row = i / heads;
        attend_head(arg, row, i % heads, row, i32(&arg[5])[row]);
    }
    return true;
}

OPERATION(tile_attention) { /* out, q, keys, values, tables, tiles; zeros beyond a tile's tokens, which nobody reads */
    REQUIRE(can_attend(arg) && are_tiles(&arg[5], arg[0].shape[0], &arg[2], &arg[4]));
    const int heads = arg[0].shape[1] / arg[2].shape[3];
    for (long i = lane; i < (long)arg[0].shape[0] * heads; i += lanes) {
        const int row = i / heads;
        global const int *tile = i32(&arg[5]) + 3 * (row / TILE);
        attend_head(arg, row, i % heads, tile[0], position_in_tile(tile, row));
    }
    return true;
}

OPERATION(take_rows) { /* out, x, indices */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && arg[0].shape[1] == arg[1].shape[1]);
    REQUIRE(are_indices_or_none(&arg[2], arg[0].shape[0], arg[1].shape[0]) && are_apart(&arg[0], &arg[2]));
    const int width = arg[0].shape[1];
    for (long i = lane; i < arg[0].length; i += lanes) {
        const int index = i32(&arg[2])[i / width];
        f32(&arg[0])[i] = index < 0 ? 0.0f : f32(&arg[1])[(long)index * width + i % width];
    }
    return true;
}

OPERATION(choose) { /* resident, tokens, logits, rows */
    REQUIRE(is_i32(&arg[0], 1) && is_i32(&arg[1], 1) && is_f32(&arg[2], 2));
    const int n = arg[2].shape[0], vocab = arg[2].shape[1];
    REQUIRE(vocab > 0 && n <= arg[1].shape[0] && are_indices_or_none(&arg[3], n, arg[0].shape[0]));
    REQUIRE(are_apart(&arg[0], &arg[3]) && are_apart(&arg[1], &arg[3]));
    for (int i = lane; i < arg[1].shape[0]; i += lanes) {
        int token = -1;
        if (i < n && i32(&arg[3])[i] >= 0) {
            global const float *logits = f32(&arg[2]) + (long)i * vocab;
            token = 0;
            for (int j = 1; j < vocab; ++j)
                if (logits[j] > logits[token]) token = j;
            i32(&arg[0])[i32(&arg[3])[i]] = token;
        }
        i32(&arg[1])[i] = token;
    }
    return true;
}
