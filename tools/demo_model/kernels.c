// SPDX-License-Identifier: Apache-2.0
// The element-wise parts of the demo model's training step, each one pass over memory: torch on a
// CPU spends more time on its passes than on the matrix products. Compiled by fast.py. bfloat16 is
// a uint16_t here, the upper half of a float; everything is computed in float.

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

static inline float Wide(bf16 x) {
  const uint32_t bits = (uint32_t)x << 16;
  float y;
  memcpy(&y, &bits, 4);
  return y;
}

// Round to nearest even; no NaN comes here.
static inline bf16 Narrow(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// out = x / rms(x) * w. `out32` may be null.
void RmsForward(long n, long dim, float eps, const float* x, const float* w, bf16* out16,
                float* out32, float* scale) {
  for (long row = 0; row < n; ++row, x += dim, out16 += dim) {
    float sum = 0;
    for (long i = 0; i < dim; ++i) sum += x[i] * x[i];
    const float s = scale[row] = 1.0f / sqrtf(sum / dim + eps);
    for (long i = 0; i < dim; ++i) out16[i] = Narrow(x[i] * s * w[i]);
    if (out32) {
      for (long i = 0; i < dim; ++i) out32[row * dim + i] = x[i] * s * w[i];
    }
  }
}

// `grad32` may be null; the gradient is the sum of both. `grad_w` is added to.
void RmsBackward(long n, long dim, const float* x, const float* w, const float* scale,
                 const bf16* grad16, const float* grad32, float* grad_x, float* grad_w) {
  float g[dim];
  for (long row = 0; row < n; ++row, x += dim, grad16 += dim, grad_x += dim) {
    const float s = scale[row];
    for (long i = 0; i < dim; ++i) g[i] = Wide(grad16[i]);
    if (grad32) {
      for (long i = 0; i < dim; ++i) g[i] += grad32[row * dim + i];
    }
    float dot = 0;
    for (long i = 0; i < dim; ++i) {
      grad_w[i] += g[i] * x[i] * s;
      g[i] *= w[i];
      dot += g[i] * x[i];
    }
    const float along = dot * s * s / dim;
    for (long i = 0; i < dim; ++i) grad_x[i] = s * (g[i] - x[i] * along);
  }
}

typedef struct {
  long batch, n, n_heads, n_kv, head_dim;
} Heads;

// Where head `h` of position `t` lies: queries [batch, n_kv, group, n, head_dim], keys and values
// [batch, n_kv, n, head_dim]; in the packed rows the order is queries, keys, values.
static size_t Place(const Heads* s, long b, long t, long h) {
  const long per_row = h < s->n_heads ? s->n_heads : s->n_kv;
  const long head = h < s->n_heads ? h : (h - s->n_heads) % s->n_kv;
  return (size_t)(((b * per_row + head) * s->n + t) * s->head_dim);
}

// Splits packed rows into heads; queries and keys are normed and rotated (NeoX pairs).
void HeadsForward(const Heads* s, float eps, const bf16* qkv, const float* w_q, const float* w_k,
                  const float* cosine, const float* sine, bf16* q, bf16* k, bf16* v, float* scale) {
  const long hd = s->head_dim, half = hd / 2, rows = s->n_heads + 2 * s->n_kv;
  for (long b = 0; b < s->batch; ++b) {
    for (long t = 0; t < s->n; ++t) {
      for (long h = 0; h < rows; ++h, qkv += hd) {
        if (h >= s->n_heads + s->n_kv) {
          memcpy(v + Place(s, b, t, h), qkv, (size_t)hd * sizeof(bf16));
          continue;
        }
        bf16* out = (h < s->n_heads ? q : k) + Place(s, b, t, h);
        const float* w = h < s->n_heads ? w_q : w_k;
        float sum = 0, y[hd];
        for (long i = 0; i < hd; ++i) sum += Wide(qkv[i]) * Wide(qkv[i]);
        const float r = *scale++ = 1.0f / sqrtf(sum / hd + eps);
        for (long i = 0; i < hd; ++i) y[i] = Wide(qkv[i]) * r * w[i];
        const float *c = cosine + t * half, *z = sine + t * half;
        for (long i = 0; i < half; ++i) {
          out[i] = Narrow(y[i] * c[i] - y[i + half] * z[i]);
          out[i + half] = Narrow(y[i + half] * c[i] + y[i] * z[i]);
        }
      }
    }
  }
}

// `grad_w_q` and `grad_w_k` are added to.
void HeadsBackward(const Heads* s, const bf16* qkv, const float* w_q, const float* w_k,
                   const float* cosine, const float* sine, const float* scale, const bf16* grad_q,
                   const bf16* grad_k, const bf16* grad_v, bf16* grad_qkv, float* grad_w_q,
                   float* grad_w_k) {
  const long hd = s->head_dim, half = hd / 2, rows = s->n_heads + 2 * s->n_kv;
  for (long b = 0; b < s->batch; ++b) {
    for (long t = 0; t < s->n; ++t) {
      for (long h = 0; h < rows; ++h, qkv += hd, grad_qkv += hd) {
        if (h >= s->n_heads + s->n_kv) {
          memcpy(grad_qkv, grad_v + Place(s, b, t, h), (size_t)hd * sizeof(bf16));
          continue;
        }
        const int is_q = h < s->n_heads;
        const bf16* g = (is_q ? grad_q : grad_k) + Place(s, b, t, h);
        const float* w = is_q ? w_q : w_k;
        float* grad_w = is_q ? grad_w_q : grad_w_k;
        const float *c = cosine + t * half, *z = sine + t * half, r = *scale++;
        float y[hd], dot = 0;
        for (long i = 0; i < half; ++i) {
          y[i] = Wide(g[i]) * c[i] + Wide(g[i + half]) * z[i];
          y[i + half] = Wide(g[i + half]) * c[i] - Wide(g[i]) * z[i];
        }
        for (long i = 0; i < hd; ++i) {
          grad_w[i] += y[i] * Wide(qkv[i]) * r;
          y[i] *= w[i];
          dot += y[i] * Wide(qkv[i]);
        }
        const float along = dot * r * r / hd;
        for (long i = 0; i < hd; ++i) grad_qkv[i] = Narrow(r * (y[i] - Wide(qkv[i]) * along));
      }
    }
  }
}

// Causal softmax in place: row r belongs to position r % n and sees the keys up to it.
void SoftmaxForward(long rows, long n, bf16* scores) {
  float e[n];
  for (long row = 0; row < rows; ++row, scores += n) {
    const long seen = row % n + 1;
    float top = -INFINITY, sum = 0;
    for (long i = 0; i < seen; ++i) top = fmaxf(top, Wide(scores[i]));
    for (long i = 0; i < seen; ++i) {
      e[i] = expf(Wide(scores[i]) - top);
      sum += e[i];
    }
    const float r = 1 / sum;
    for (long i = 0; i < seen; ++i) scores[i] = Narrow(e[i] * r);
    memset(scores + seen, 0, (size_t)(n - seen) * sizeof(bf16));
  }
}

// `grad` in place: from that of the probabilities to that of the scores.
void SoftmaxBackward(long rows, long n, const bf16* p, bf16* grad) {
  for (long row = 0; row < rows; ++row, p += n, grad += n) {
    const long seen = row % n + 1;
    float dot = 0;
    for (long i = 0; i < seen; ++i) dot += Wide(p[i]) * Wide(grad[i]);
    for (long i = 0; i < seen; ++i) grad[i] = Narrow(Wide(p[i]) * (Wide(grad[i]) - dot));
    memset(grad + seen, 0, (size_t)(n - seen) * sizeof(bf16));
  }
}

// h = silu(gate) * up with hidden = [gate, up].
void SwigluForward(long rows, long dim, const bf16* hidden, bf16* h) {
  for (long row = 0; row < rows; ++row, hidden += 2 * dim, h += dim) {
    for (long i = 0; i < dim; ++i) {
      const float gate = Wide(hidden[i]);
      h[i] = Narrow(gate / (1 + expf(-gate)) * Wide(hidden[dim + i]));
    }
  }
}

void SwigluBackward(long rows, long dim, const bf16* hidden, const bf16* grad_h,
                    bf16* grad_hidden) {
  for (long row = 0; row < rows; ++row, hidden += 2 * dim, grad_hidden += 2 * dim, grad_h += dim) {
    for (long i = 0; i < dim; ++i) {
      const float gate = Wide(hidden[i]), g = Wide(grad_h[i]);
      const float sigmoid = 1 / (1 + expf(-gate)), silu = gate * sigmoid;
      grad_hidden[i] = Narrow(g * Wide(hidden[dim + i]) * (sigmoid + silu * (1 - sigmoid)));
      grad_hidden[dim + i] = Narrow(g * silu);
    }
  }
}

// rows[row_of[t, j]] = x[t]. Rows of padding are not touched.
void Spread(long n, long top_k, long dim, const bf16* x, const int64_t* row_of, bf16* rows) {
  for (long slot = 0; slot < n * top_k; ++slot) {
    memcpy(rows + row_of[slot] * dim, x + slot / top_k * dim, (size_t)dim * sizeof(bf16));
  }
}

// out[t] = sum over j of p[t, j] * y[row_of[t, j]]; a null `p` means ones.
void Gather(long n, long top_k, long dim, const bf16* y, const int64_t* row_of, const float* p,
            float* out) {
  for (long t = 0; t < n; ++t, out += dim) {
    memset(out, 0, (size_t)dim * sizeof(float));
    for (long j = 0; j < top_k; ++j) {
      const bf16* row = y + row_of[t * top_k + j] * dim;
      const float weight = p ? p[t * top_k + j] : 1;
      for (long i = 0; i < dim; ++i) out[i] += weight * Wide(row[i]);
    }
  }
}

void GatherBackward(long n, long top_k, long dim, const float* grad, const bf16* y,
                    const int64_t* row_of, const float* p, bf16* grad_y, float* grad_p) {
  for (long slot = 0; slot < n * top_k; ++slot) {
    const float* g = grad + slot / top_k * dim;
    const bf16* row = y + row_of[slot] * dim;
    bf16* out = grad_y + row_of[slot] * dim;
    float dot = 0;
    for (long i = 0; i < dim; ++i) {
      dot += g[i] * Wide(row[i]);
      out[i] = Narrow(g[i] * p[slot]);
    }
    grad_p[slot] = dot;
  }
}

// Logits in place to their gradient, softmax minus one-hot. Returns the summed loss in nats.
double CrossEntropy(long rows, long vocab, bf16* logits, const int64_t* target) {
  double loss = 0;
  float e[vocab];
  for (long row = 0; row < rows; ++row, logits += vocab) {
    float top = -INFINITY, sum = 0;
    for (long i = 0; i < vocab; ++i) top = fmaxf(top, Wide(logits[i]));
    for (long i = 0; i < vocab; ++i) {
      e[i] = expf(Wide(logits[i]) - top);
      sum += e[i];
    }
    const float r = 1 / sum;
    loss -= logf(e[target[row]] * r + 1e-30f);
    e[target[row]] -= sum;
    for (long i = 0; i < vocab; ++i) logits[i] = Narrow(e[i] * r);
  }
  return loss;
}

// One step of Muon's momentum for blocks of `size` weights: g is the sum of the workers' gradients,
// m moves to it by 1 - mu, and out is (1 - mu) g + mu m scaled to Frobenius norm 1.
void MuonMomentum(long n_blocks, long size, long n_grads, const float* const* grads, float mu,
                  float* momentum, bf16* out) {
  for (long block = 0; block < n_blocks; ++block) {
    const long at = block * size;
    float *m = momentum + at, u[4096], sum = 0;
    for (int pass = 0; pass < 2; ++pass) {
      const float scale = pass ? 1 / (sqrtf(sum) + 1e-12f) : 0;
      for (long begin = 0; begin < size; begin += 4096) {
        const long n = size - begin < 4096 ? size - begin : 4096;
        memcpy(u, grads[0] + at + begin, (size_t)n * sizeof(float));
        for (long w = 1; w < n_grads; ++w) {
          for (long i = 0; i < n; ++i) u[i] += grads[w][at + begin + i];
        }
        for (long i = 0; i < n; ++i) {
          if (!pass) m[begin + i] += (1 - mu) * (u[i] - m[begin + i]);
          u[i] = (1 - mu) * u[i] + mu * m[begin + i];
        }
        if (pass) {
          for (long i = 0; i < n; ++i) out[at + begin + i] = Narrow(u[i] * scale);
        } else {
          for (long i = 0; i < n; ++i) sum += u[i] * u[i];
        }
      }
    }
  }
}

void MuonApply(long n, float rate, float decay, const bf16* update, float* weights) {
  for (long i = 0; i < n; ++i) {
    weights[i] = weights[i] * (1 - rate * decay) - rate * Wide(update[i]);
  }
}
