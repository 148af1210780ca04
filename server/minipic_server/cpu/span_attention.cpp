// Attention of span-request rows on vLLM's paged CPU cache; attention.py holds the readable reference.
//
// One task per (row, kv head, tile of queries, split of the keys): the query is turned once per run of keys, scores of
// a chunk of keys are softmaxed online, splits are merged by their log-sum-exp. All arithmetic is float32.
//
// Cache block, per kv head: keys transposed [head][block_size], then values [block_size][head].

// No torch headers: it compiles in seconds, and OpenMP shares the threads torch has already started and pinned.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace {

constexpr int64_t kRowFields = 4;  // query start, query length, first run, end of runs
constexpr int64_t kRunFields = 5;  // first index into blocks, slot in that block, keys, turn, 1 if the row's own segment
constexpr int kMaxRows = 48;       // query tokens x heads per kv head in one tile
constexpr int kChunk = 128;        // slots per row of scores: the largest block
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

constexpr int kWidth = 8;  // one AVX2 register; wider vectors than the machine's are spilled by GCC
using vec = float __attribute__((vector_size(4 * kWidth)));
using veci = int32_t __attribute__((vector_size(4 * kWidth)));

inline vec load(const float* p) {
  vec x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
inline void store(float* p, vec x) { std::memcpy(p, &x, sizeof(x)); }
inline vec max(vec a, vec b) { return a > b ? a : b; }
inline float highest(vec x) {
  float m = x[0];
  for (int i = 1; i < kWidth; ++i) m = std::max(m, x[i]);
  return m;
}
inline float sum(vec x) {
  float t = 0;
  for (int i = 0; i < kWidth; ++i) t += x[i];
  return t;
}

// exp for x <= 0, relative error 2e-7.
inline vec fast_exp(vec x) {
  x = max(x, vec{} - 87.0f);
  const vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to the nearest integer
  const vec r = x - n * 0.693145752f - n * 1.42860677e-6f;
  vec p = r * 1.98412698e-4f + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const veci bits = (__builtin_convertvector(n, veci) + 127) << 23;
  vec scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return p * scale;
}

struct Shape {
  int64_t heads, kv_heads, head, block_size, rotary;
  bool neox;
  float scale;
};

struct Task {
  int64_t row, kv_head, query, queries, first_key, last_key, partial;  // keys counted over all runs of the row
};

// s[m][0..16) = q[m] . k[:, 0..16) for MR rows: their sums stay in registers.
template <int MR>
inline void scores_tile(const float* q, int64_t head, const float* k, int64_t block, float* s) {
  vec low[MR] = {}, high[MR] = {};
  for (int64_t d = 0; d < head; ++d) {
    const vec a = load(k + d * block), b = load(k + d * block + kWidth);
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const float x = q[m * head + d];
      low[m] += x * a;
      high[m] += x * b;
    }
  }
  for (int m = 0; m < MR; ++m) {
    store(s + m * kChunk, low[m]);
    store(s + m * kChunk + kWidth, high[m]);
  }
}

// acc[m][0..head) += p[m] . v[0..count)
template <int MR>
inline void values_tile(const float* p, int64_t count, const float* v, int64_t head, float* acc) {
  for (int64_t d = 0; d < head; d += 2 * kWidth) {
    vec low[MR], high[MR];
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      low[m] = load(acc + m * head + d);
      high[m] = load(acc + m * head + d + kWidth);
    }
    for (int64_t i = 0; i < count; ++i) {
      const vec a = load(v + i * head + d), b = load(v + i * head + d + kWidth);
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) {
        const float x = p[m * kChunk + i];
        low[m] += x * a;
        high[m] += x * b;
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      store(acc + m * head + d, low[m]);
      store(acc + m * head + d + kWidth, high[m]);
    }
  }
}

template <int MR>
inline void scores_rows(const float* q, int64_t head, const float* k, int64_t block, float* s) {
  for (int64_t b = 0; b < block; b += 2 * kWidth) scores_tile<MR>(q, head, k + b, block, s + b);
}

inline void scores(int64_t rows, const float* q, int64_t head, const float* k, int64_t block, float* s) {
  int64_t m = 0;
  for (; m + 6 <= rows; m += 6) scores_rows<6>(q + m * head, head, k, block, s + m * kChunk);
  for (; m + 3 <= rows; m += 3) scores_rows<3>(q + m * head, head, k, block, s + m * kChunk);
  for (; m < rows; ++m) scores_rows<1>(q + m * head, head, k, block, s + m * kChunk);
}

inline void add_values(int64_t rows, const float* p, int64_t count, const float* v, int64_t head, float* acc) {
  int64_t m = 0;
  for (; m + 6 <= rows; m += 6) values_tile<6>(p + m * kChunk, count, v, head, acc + m * head);
  for (; m + 3 <= rows; m += 3) values_tile<3>(p + m * kChunk, count, v, head, acc + m * head);
  for (; m < rows; ++m) values_tile<1>(p + m * kChunk, count, v, head, acc + m * head);
}

void turn_back(const float* from, float* to, int64_t rows, const Shape& g, const float* cos, const float* sin) {
  const int64_t half = g.rotary / 2;
  std::memcpy(to, from, rows * g.head * sizeof(float));
  for (int64_t m = 0; m < rows; ++m) {
    const float* x = from + m * g.head;
    float* y = to + m * g.head;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t a = g.neox ? i : 2 * i, b = g.neox ? i + half : 2 * i + 1;
      y[a] = x[a] * cos[i] + x[b] * sin[i];
      y[b] = x[b] * cos[i] - x[a] * sin[i];
    }
  }
}

struct BFloat16 {
  uint16_t bits;
  operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof(x));
    return x;
  }
  static BFloat16 from(float x) {  // to nearest, ties to even
    uint32_t wide;
    std::memcpy(&wide, &x, sizeof(wide));
    return {static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16)};
  }
};
template <typename T>
T narrow(float x) {
  return static_cast<T>(x);
}
template <>
inline BFloat16 narrow<BFloat16>(float x) {
  return BFloat16::from(x);
}

template <typename T>
inline const float* as_float(const T* data, int64_t count, float* scratch) {
  for (int64_t i = 0; i < count; ++i) scratch[i] = static_cast<float>(data[i]);
  return scratch;
}
template <>
inline const float* as_float<float>(const float* data, int64_t, float*) {
  return data;
}

struct Buffers {
  std::vector<float> query, turned, acc, s, keys, values;
  Buffers(const Shape& g)
      : query(kMaxRows * g.head), turned(kMaxRows * g.head), acc(kMaxRows * g.head), s(kMaxRows * kChunk),
        keys(g.head * g.block_size), values(g.head * g.block_size) {}
};

// Attention of one task; leaves the unnormalised sum in w.acc, maximum and sum of weights in top and total.
template <typename T>
void attend(const Task& t, const Shape& g, const T* query, const T* cache, const int64_t* rows, const int64_t* runs,
            const int32_t* blocks, const float* cos, const float* sin, Buffers& w, float* top, float* total) {
  const int64_t group = g.heads / g.kv_heads, m_rows = t.queries * group;
  const int64_t* row = rows + t.row * kRowFields;
  for (int64_t i = 0; i < t.queries; ++i) {
    const T* from = query + ((row[0] + t.query + i) * g.heads + t.kv_head * group) * g.head;
    for (int64_t x = 0; x < group * g.head; ++x) w.query[i * group * g.head + x] = static_cast<float>(from[x]);
  }
  std::fill_n(w.acc.begin(), m_rows * g.head, 0.0f);
  std::fill_n(top, m_rows, kNegInf);
  std::fill_n(total, m_rows, 0.0f);
  const int64_t block_stride = g.kv_heads * g.block_size * 2 * g.head, head_stride = g.block_size * 2 * g.head;
  int64_t at = 0;  // keys of the row before this run
  for (int64_t r = row[2]; r < row[3]; ++r) {
    const int64_t* run = runs + r * kRunFields;
    const int64_t length = run[2];
    const int64_t lo = std::max<int64_t>(t.first_key - at, 0), hi = std::min(t.last_key - at, length);
    at += length;
    if (lo >= hi) continue;
    const float* q = w.query.data();
    if (run[3]) {
      turn_back(q, w.turned.data(), m_rows, g, cos + run[3] * (g.rotary / 2), sin + run[3] * (g.rotary / 2));
      q = w.turned.data();
    }
    const int64_t before = length - row[1];  // own segment: keys before the row's first query
    for (int64_t slot = run[1] + lo; slot < run[1] + hi;) {
      const int64_t in_block = slot % g.block_size;
      const int64_t count = std::min(g.block_size - in_block, run[1] + hi - slot);
      const T* block = cache + static_cast<int64_t>(blocks[run[0] + slot / g.block_size]) * block_stride + t.kv_head * head_stride;
      const float* k = as_float(block, g.head * g.block_size, w.keys.data());
      scores(m_rows, q, g.head, k, g.block_size, w.s.data());
      const float* v = as_float(block + g.head * (g.block_size + in_block), count * g.head, w.values.data());
      const int64_t first = slot - run[1];  // of these keys in the run
      for (int64_t m = 0; m < m_rows; ++m) {
        int64_t seen = count;
        if (run[4]) seen = std::clamp<int64_t>(before + t.query + m / group + 1 - first, 0, count);
        float* s = w.s.data() + m * kChunk;
        // Slots before and behind the visible ones get weight 0; they may hold anything, NaN too.
        for (int64_t x = 0; x < in_block; ++x) s[x] = kNegInf;
        for (int64_t x = in_block + seen; x < g.block_size; ++x) s[x] = kNegInf;
        vec highs = load(s);
        for (int64_t x = kWidth; x < g.block_size; x += kWidth) highs = max(highs, load(s + x));
        const float high = std::max(top[m], highest(highs) * g.scale);
        if (high == kNegInf) {
          std::fill_n(s, g.block_size, 0.0f);
          continue;
        }
        const float shrink = top[m] == kNegInf ? 0.0f : std::exp(top[m] - high);
        vec sums = {};
        for (int64_t x = 0; x < g.block_size; x += kWidth) {
          vec weights = fast_exp(load(s + x) * g.scale - high);
          weights = load(s + x) == kNegInf ? vec{} : weights;
          store(s + x, weights);
          sums += weights;
        }
        const float total_here = sum(sums);
        if (shrink != 1.0f) {
          float* a = w.acc.data() + m * g.head;
          for (int64_t d = 0; d < g.head; ++d) a[d] *= shrink;
        }
        total[m] = total[m] * shrink + total_here;
        top[m] = high;
      }
      add_values(m_rows, w.s.data() + in_block, count, v, g.head, w.acc.data());
      slot += count;
    }
  }
}

template <typename T>
void run_all(const T* query, const T* cache, T* to, int64_t num_rows, const int64_t* row, const int64_t* run,
             const int32_t* blocks, const float* cos, const float* sin, const Shape& g) {
  const int64_t group = g.heads / g.kv_heads, tile = std::max<int64_t>(kMaxRows / group, 1);
  std::vector<Task> tasks;
  int64_t whole = 0;
  for (int64_t r = 0; r < num_rows; ++r) whole += (row[r * kRowFields + 1] + tile - 1) / tile * g.kv_heads;
  const int64_t splits = std::clamp<int64_t>(4 * omp_get_max_threads() / std::max<int64_t>(whole, 1), 1, 8);
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t keys = 0;
    for (int64_t i = row[r * kRowFields + 2]; i < row[r * kRowFields + 3]; ++i) keys += run[i * kRunFields + 2];
    const int64_t queries = row[r * kRowFields + 1];
    for (int64_t h = 0; h < g.kv_heads; ++h)
      for (int64_t first = 0; first < queries; first += tile) {
        const int64_t count = std::min(tile, queries - first);
        const int64_t visible = keys - (queries - first - count);  // later queries' keys are all masked
        const int64_t step = std::max<int64_t>((visible + splits - 1) / splits, 256);
        for (int64_t k = 0; k < visible; k += step)
          tasks.push_back({r, h, first, count, k, std::min(k + step, visible), k / step});
      }
  }
  const int64_t n = tasks.size(), width = kMaxRows * (g.head + 2);
  std::vector<float> partial(n * width);
#pragma omp parallel
  {
    Buffers w(g);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; ++i) {
      float* out = partial.data() + i * width;
      attend<T>(tasks[i], g, query, cache, row, run, blocks, cos, sin, w, out, out + kMaxRows);
      std::memcpy(out + 2 * kMaxRows, w.acc.data(), tasks[i].queries * group * g.head * sizeof(float));
    }
    std::vector<float> mixed(g.head);
#pragma omp for schedule(dynamic, 8)
    for (int64_t i = 0; i < n; ++i) {
      if (tasks[i].partial) continue;
      const Task& t = tasks[i];
      int64_t last = i + 1;
      while (last < n && tasks[last].partial) ++last;
      for (int64_t m = 0; m < t.queries * group; ++m) {
        float high = kNegInf, weights = 0;
        for (int64_t j = i; j < last; ++j) high = std::max(high, partial[j * width + m]);
        T* o = to + ((row[t.row * kRowFields] + t.query + m / group) * g.heads + t.kv_head * group + m % group) * g.head;
        std::fill(mixed.begin(), mixed.end(), 0.0f);
        for (int64_t j = i; j < last; ++j) {
          const float* p = partial.data() + j * width;
          if (p[m] == kNegInf) continue;
          const float weight = std::exp(p[m] - high);
          weights += weight * p[kMaxRows + m];
          for (int64_t d = 0; d < g.head; ++d) mixed[d] += weight * p[2 * kMaxRows + m * g.head + d];
        }
        for (int64_t d = 0; d < g.head; ++d) o[d] = narrow<T>(weights > 0 ? mixed[d] / weights : 0.0f);
      }
    }
  }
}

}  // namespace

// query, to [tokens, heads, head]; cache [blocks, kv_heads, block_size, 2 * head], one dtype: 0 float, 1 bfloat16,
// 2 half. rows [num_rows, 4], runs [n, 5] int64, blocks int32; cos, sin [turns, rotary / 2]. Writes the rows' tokens of `to`
// only. Returns 0, or 1 for a shape it doesn't serve.
extern "C" int minipic_span_attention(int dtype, const void* query, const void* cache, void* to, int64_t heads,
                                      int64_t kv_heads, int64_t head, int64_t block_size, int64_t num_rows,
                                      const int64_t* rows, const int64_t* runs, const int32_t* blocks,
                                      const float* cos, const float* sin, int64_t rotary, int neox, float scale) {
  const Shape g{heads, kv_heads, head, block_size, rotary, neox != 0, scale};
  if (block_size % 16 || block_size > kChunk || head % 16 || heads / kv_heads > kMaxRows) return 1;
  const auto run = [&](auto* q) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(q)>>;
    run_all<T>(q, static_cast<const T*>(cache), static_cast<T*>(to), num_rows, rows, runs, blocks, cos, sin, g);
  };
  if (dtype == 0) run(static_cast<const float*>(query));
  if (dtype == 1) run(static_cast<const BFloat16*>(query));
  if (dtype == 2) run(static_cast<const _Float16*>(query));
  return 0;
}
