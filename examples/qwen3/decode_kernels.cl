/* The kernels of `kernels.py` that the decoder alone has, as operations behind those of `kernels.cl`. */

OPERATION(embed) { /* out, table, forced, resident, rows */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_i32(&arg[2], 1) && is_i32(&arg[3], 1));
    const int n = arg[0].shape[0], hidden = arg[0].shape[1], vocab = arg[1].shape[0];
    REQUIRE(arg[1].shape[1] == hidden && arg[2].shape[0] == n && are_indices(&arg[4], n, arg[3].shape[0]));
    REQUIRE(are_apart(&arg[0], &arg[4]));
    for (int i = 0; i < n; ++i) {
        int token = i32(&arg[2])[i];
        if (token < 0) token = i32(&arg[3])[i32(&arg[4])[i]];
        REQUIRE(token >= 0 && token < vocab);
        global const float *source = f32(&arg[1]) + (long)token * hidden;
        for (int j = lane; j < hidden; j += lanes) f32(&arg[0])[(long)i * hidden + j] = source[j];
    }
    return true;
}

OPERATION(kv_append) { /* keys, values, k, v, rows, positions */
    REQUIRE(is_f32(&arg[0], 4) && is_f32(&arg[1], 4) && is_f32(&arg[2], 2) && is_f32(&arg[3], 2));
    const int batch = arg[0].shape[0], heads = arg[0].shape[1], capacity = arg[0].shape[2], head_dim = arg[0].shape[3];
    const int n = arg[2].shape[0], width = arg[2].shape[1];
    for (int d = 0; d < 4; ++d) REQUIRE(arg[0].shape[d] == arg[1].shape[d]);
    REQUIRE(width == heads * head_dim && arg[3].shape[0] == n && arg[3].shape[1] == width);
    REQUIRE(are_indices(&arg[4], n, batch) && are_indices(&arg[5], n, capacity));
    for (int out = 0; out < 2; ++out) REQUIRE(are_apart(&arg[out], &arg[4]) && are_apart(&arg[out], &arg[5]));
    for (long i = lane; i < (long)n * width; i += lanes) {
        const int row = i / width, head = i % width / head_dim, element = i % head_dim;
        const long cache = ((long)i32(&arg[4])[row] * heads + head) * capacity + i32(&arg[5])[row];
        f32(&arg[0])[cache * head_dim + element] = f32(&arg[2])[i];
        f32(&arg[1])[cache * head_dim + element] = f32(&arg[3])[i];
    }
    return true;
}

/* In one pass over the cache: when a larger score comes, what was summed so far is scaled down.
 * Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018. */
OPERATION(attention) { /* out, q, keys, values, rows, positions */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_f32(&arg[2], 4) && is_f32(&arg[3], 4));
    const int n = arg[0].shape[0], width = arg[0].shape[1];
    const int batch = arg[2].shape[0], kv_heads = arg[2].shape[1], capacity = arg[2].shape[2], head_dim = arg[2].shape[3];
    for (int d = 0; d < 4; ++d) REQUIRE(arg[2].shape[d] == arg[3].shape[d]);
    REQUIRE(arg[1].shape[0] == n && arg[1].shape[1] == width && head_dim > 0 && width % head_dim == 0);
    const int heads = width / head_dim;
    REQUIRE(kv_heads > 0 && heads % kv_heads == 0);
    REQUIRE(are_indices(&arg[4], n, batch) && are_indices(&arg[5], n, capacity));
    REQUIRE(are_apart(&arg[0], &arg[4]) && are_apart(&arg[0], &arg[5]));
    const float scale = rsqrt((float)head_dim);
    for (long i = lane; i < (long)n * heads; i += lanes) {
        const int row = i / heads, kv_head = i % heads / (heads / kv_heads), position = i32(&arg[5])[row];
        const long cache = ((long)i32(&arg[4])[row] * kv_heads + kv_head) * capacity * head_dim;
        global const float *q = f32(&arg[1]) + i * head_dim, *keys = f32(&arg[2]) + cache, *values = f32(&arg[3]) + cache;
        global float *out = f32(&arg[0]) + i * head_dim;
        float largest = -INFINITY, sum = 0.0f;
        for (int j = 0; j < head_dim; ++j) out[j] = 0.0f;
        for (int t = 0; t <= position; ++t) {
            const float score = scale * dot_product(q, keys + (long)t * head_dim, head_dim);
            const float shrink = score > largest ? exp(largest - score) : 1.0f;
            largest = fmax(largest, score);
            const float share = exp(score - largest);
            sum = sum * shrink + share;
            add_scaled(out, shrink, values + (long)t * head_dim, share, head_dim);
        }
        for (int j = 0; j < head_dim; ++j) out[j] /= sum;
    }
    return true;
}

OPERATION(argmax) { /* resident, tokens, logits, rows */
    REQUIRE(is_i32(&arg[0], 1) && is_i32(&arg[1], 1) && is_f32(&arg[2], 2));
    const int batch = arg[1].shape[0], n = arg[2].shape[0], vocab = arg[2].shape[1];
    REQUIRE(arg[0].shape[0] == batch && vocab > 0 && are_indices(&arg[3], n, batch));
    for (int row = lane; row < batch; row += lanes) {
        int token = -1;
        for (int i = 0; i < n; ++i) {
            if (i32(&arg[3])[i] != row) continue;
            global const float *logits = f32(&arg[2]) + (long)i * vocab;
            token = 0;
            for (int j = 1; j < vocab; ++j)
                if (logits[j] > logits[token]) token = j;
        }
        i32(&arg[1])[row] = token;
        if (token >= 0) i32(&arg[0])[row] = token;
    }
    return true;
}
