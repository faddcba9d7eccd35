/* The decoder's kernels of `kernels.py` as operations for `async_orch.graph.OpenCLDispatcher`, float32 throughout.
 *
 * Shapes, formulas and their sources are those of the Python functions of the same names. Each lane does whole elements,
 * rows or heads, so no two lanes share a sum: results do not depend on their number, nor a row's on its batch mates.
 * Every shape, and every index that comes from memory, is checked here, as a damaged image could hold any.
 */

/* Sum of the products of two rows. The order of summation depends on the length alone. */
float dot_product(global const float *a, global const float *b, int length) {
    float8 sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
    int i = 0;
    for (; i + 32 <= length; i += 32) {
        sum0 = fma(vload8(0, a + i), vload8(0, b + i), sum0);
        sum1 = fma(vload8(0, a + i + 8), vload8(0, b + i + 8), sum1);
        sum2 = fma(vload8(0, a + i + 16), vload8(0, b + i + 16), sum2);
        sum3 = fma(vload8(0, a + i + 24), vload8(0, b + i + 24), sum3);
    }
    for (; i + 8 <= length; i += 8) sum0 = fma(vload8(0, a + i), vload8(0, b + i), sum0);
    const float8 sum = (sum0 + sum1) + (sum2 + sum3);
    const float4 half4 = sum.lo + sum.hi;
    float total = (half4.x + half4.y) + (half4.z + half4.w);
    for (; i < length; ++i) total = fma(a[i], b[i], total);
    return total;
}

/* Whether `indices` holds `n` numbers from 0 to `limit` - 1. */
bool are_indices(const Arg *indices, int n, int limit) {
    if (!is_i32(indices, 1) || indices->shape[0] != n) return false;
    for (int i = 0; i < n; ++i)
        if (i32(indices)[i] < 0 || i32(indices)[i] >= limit) return false;
    return true;
}

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

OPERATION(rms_norm) { /* out, x, weight, eps */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_f32(&arg[2], 1) && !arg[3].is_tensor);
    const int width = arg[2].shape[0];
    REQUIRE(width > 0 && arg[0].length == arg[1].length && arg[1].length % width == 0);
    for (long group = lane; group < arg[1].length / width; group += lanes) {
        global const float *x = f32(&arg[1]) + group * width;
        global float *out = f32(&arg[0]) + group * width;
        const float scale = sqrt(dot_product(x, x, width) / width + arg[3].real);
        for (int i = 0; i < width; ++i) out[i] = x[i] / scale * f32(&arg[2])[i];
    }
    return true;
}

OPERATION(linear) { /* out, x, weight */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_f32(&arg[2], 2));
    const int n = arg[0].shape[0], outputs = arg[0].shape[1], inputs = arg[1].shape[1];
    REQUIRE(arg[1].shape[0] == n && arg[2].shape[0] == outputs && arg[2].shape[1] == inputs);
    for (int output = lane; output < outputs; output += lanes) { /* a weight's row is read once for all rows of x */
        global const float *weight = f32(&arg[2]) + (long)output * inputs;
        for (int i = 0; i < n; ++i)
            f32(&arg[0])[(long)i * outputs + output] = dot_product(f32(&arg[1]) + (long)i * inputs, weight, inputs);
    }
    return true;
}

OPERATION(rope) { /* x, cosine, sine, positions */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_f32(&arg[2], 2));
    const int n = arg[0].shape[0], width = arg[0].shape[1], capacity = arg[1].shape[0], half_dim = arg[1].shape[1];
    REQUIRE(half_dim > 0 && width % (2 * half_dim) == 0 && are_indices(&arg[3], n, capacity));
    REQUIRE(arg[2].shape[0] == capacity && arg[2].shape[1] == half_dim && are_apart(&arg[0], &arg[3]));
    const int pairs = width / 2;
    for (long pair = lane; pair < (long)n * pairs; pair += lanes) {
        const int row = pair / pairs, head = pair % pairs / half_dim, i = pair % half_dim;
        global float *first = f32(&arg[0]) + (long)row * width + head * 2 * half_dim + i, *second = first + half_dim;
        const long angle = (long)i32(&arg[3])[row] * half_dim + i;
        const float cosine = f32(&arg[1])[angle], sine = f32(&arg[2])[angle];
        const float x = *first, y = *second;
        *first = x * cosine - y * sine;
        *second = y * cosine + x * sine;
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
            if (score > largest) {
                const float shrink = exp(largest - score);
                sum *= shrink;
                for (int j = 0; j < head_dim; ++j) out[j] *= shrink;
                largest = score;
            }
            const float share = exp(score - largest);
            sum += share;
            for (int j = 0; j < head_dim; ++j) out[j] = fma(share, values[(long)t * head_dim + j], out[j]);
        }
        for (int j = 0; j < head_dim; ++j) out[j] /= sum;
    }
    return true;
}

OPERATION(swiglu) { /* out, gate, up */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_f32(&arg[2], 2));
    REQUIRE(arg[0].length == arg[1].length && arg[0].length == arg[2].length);
    for (long i = lane; i < arg[0].length; i += lanes) {
        const float gate = f32(&arg[1])[i];
        f32(&arg[0])[i] = gate / (1.0f + exp(-gate)) * f32(&arg[2])[i];
    }
    return true;
}

OPERATION(add) { /* x, y */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && arg[0].length == arg[1].length);
    for (long i = lane; i < arg[0].length; i += lanes) f32(&arg[0])[i] += f32(&arg[1])[i];
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
