/* Kernels of `kernels.py` as operations for `async_orch.graph.OpenCLDispatcher`, float32 throughout: those that the
 * decoder and the paged programs share. `decode_kernels.cl` or `paged_kernels.cl` follows with the others.
 *
 * Shapes, formulas and their sources are those of the Python functions of the same names. Each lane does whole elements,
 * rows or heads, so no two lanes share a sum: results do not depend on their number, nor a row's on its batch mates.
 * Every shape, and every index that comes from memory, is checked here, as a damaged image could hold any.
 */

/* Each product is rounded before it is added, whatever the compiler makes of a loop: equal sums have equal bits. */
#pragma OPENCL FP_CONTRACT OFF

enum { BLOCK = 4 };

/* Sum of the products of two rows. The order of summation depends on the length alone. */
float dot_product(global const float *a, global const float *b, int length) {
    float8 sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
    int i = 0;
    for (; i + 32 <= length; i += 32) {
        sum0 += vload8(0, a + i) * vload8(0, b + i);
        sum1 += vload8(0, a + i + 8) * vload8(0, b + i + 8);
        sum2 += vload8(0, a + i + 16) * vload8(0, b + i + 16);
        sum3 += vload8(0, a + i + 24) * vload8(0, b + i + 24);
    }
    for (; i + 8 <= length; i += 8) sum0 += vload8(0, a + i) * vload8(0, b + i);
    const float8 sum = (sum0 + sum1) + (sum2 + sum3);
    const float4 half4 = sum.lo + sum.hi;
    float total = (half4.x + half4.y) + (half4.z + half4.w);
    for (; i < length; ++i) total += a[i] * b[i];
    return total;
}

/* sum = sum * scale + x * share, all of `length`; sum and x lie apart. */
void add_scaled(global float *sum, float scale, global const float *x, float share, int length) {
    int i = 0;
    for (; i + 8 <= length; i += 8) vstore8(vload8(0, sum + i) * scale + vload8(0, x + i) * share, 0, sum + i);
    for (; i < length; ++i) sum[i] = sum[i] * scale + x[i] * share;
}

/* Whether `indices` holds `n` numbers from `least` to `limit` - 1. */
bool are_numbers(const Arg *indices, int n, int least, int limit) {
    if (!is_i32(indices, 1) || indices->shape[0] != n) return false;
    for (int i = 0; i < n; ++i)
        if (i32(indices)[i] < least || i32(indices)[i] >= limit) return false;
    return true;
}

bool are_indices(const Arg *indices, int n, int limit) { return are_numbers(indices, n, 0, limit); }

/* The same with -1, which stands for none: padding. */
bool are_indices_or_none(const Arg *indices, int n, int limit) { return are_numbers(indices, n, -1, limit); }

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

/* `rows` by `columns` elements of x @ weight.T: a product of vectors uses what was loaded several times. Both numbers are
 * constants where this is called, so the sums stay in registers; the order of summation depends on `inputs` alone. */
void multiply(
    global float *out, global const float *x, global const float *weight, int outputs, int inputs, int rows, int columns
) {
    float8 sums[BLOCK][BLOCK], weights[BLOCK];
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < columns; ++c) sums[r][c] = 0.0f;
    int i = 0;
    for (; i + 8 <= inputs; i += 8) {
        for (int c = 0; c < columns; ++c) weights[c] = vload8(0, weight + (long)c * inputs + i);
        for (int r = 0; r < rows; ++r) {
            const float8 values = vload8(0, x + (long)r * inputs + i);
            for (int c = 0; c < columns; ++c) sums[r][c] += values * weights[c];
        }
    }
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < columns; ++c) {
            const float4 half4 = sums[r][c].lo + sums[r][c].hi;
            float total = (half4.x + half4.y) + (half4.z + half4.w);
            for (int k = i; k < inputs; ++k) total += x[(long)r * inputs + k] * weight[(long)c * inputs + k];
            out[(long)r * outputs + c] = total;
        }
}

/* The same for all `n` rows. */
void multiply_rows(
    global float *out, global const float *x, global const float *weight, int outputs, int inputs, int n, int columns
) {
    int i = 0;
    for (; i <= n - BLOCK; i += BLOCK)
        multiply(out + (long)i * outputs, x + (long)i * inputs, weight, outputs, inputs, BLOCK, columns);
    for (; i < n; ++i) multiply(out + (long)i * outputs, x + (long)i * inputs, weight, outputs, inputs, 1, columns);
}

OPERATION(linear) { /* out, x, weight */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_f32(&arg[2], 2));
    const int n = arg[0].shape[0], outputs = arg[0].shape[1], inputs = arg[1].shape[1];
    REQUIRE(arg[1].shape[0] == n && arg[2].shape[0] == outputs && arg[2].shape[1] == inputs);
    const int blocks = outputs / BLOCK; /* of outputs; behind them come single ones. A weight is read once for all rows */
    for (int i = lane; i < blocks + outputs % BLOCK; i += lanes) {
        const long first = i < blocks ? (long)i * BLOCK : (long)i + blocks * (BLOCK - 1);
        global float *out = f32(&arg[0]) + first;
        global const float *weight = f32(&arg[2]) + first * inputs;
        if (i < blocks) multiply_rows(out, f32(&arg[1]), weight, outputs, inputs, n, BLOCK);
        else multiply_rows(out, f32(&arg[1]), weight, outputs, inputs, n, 1);
    }
    return true;
}

OPERATION(rope) { /* x, cosine, sine, positions; a row at position -1 stays as it is */
    REQUIRE(is_f32(&arg[0], 2) && is_f32(&arg[1], 2) && is_f32(&arg[2], 2));
    const int n = arg[0].shape[0], width = arg[0].shape[1], capacity = arg[1].shape[0], half_dim = arg[1].shape[1];
    REQUIRE(half_dim > 0 && width % (2 * half_dim) == 0 && are_indices_or_none(&arg[3], n, capacity));
    REQUIRE(arg[2].shape[0] == capacity && arg[2].shape[1] == half_dim && are_apart(&arg[0], &arg[3]));
    const int pairs = width / 2;
    for (long pair = lane; pair < (long)n * pairs; pair += lanes) {
        const int row = pair / pairs, head = pair % pairs / half_dim, i = pair % half_dim;
        if (i32(&arg[3])[row] < 0) continue;
        global float *first = f32(&arg[0]) + (long)row * width + head * 2 * half_dim + i, *second = first + half_dim;
        const long angle = (long)i32(&arg[3])[row] * half_dim + i;
        const float cosine = f32(&arg[1])[angle], sine = f32(&arg[2])[angle];
        const float x = *first, y = *second;
        *first = x * cosine - y * sine;
        *second = y * cosine + x * sine;
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
