// tensorcore for Python: memories as NumPy arrays (shared [ctas, bytes], tensor memory [ctas, 128,
// 512]) with poison arrays beside them.
#include <cstring>
#include <ctime>

#include "parts_binding.h"
#include "tensorcore/copy.h"
#include "tensorcore/fragment.h"
#include "tensorcore/mma.h"
#include "tensorcore/tmem.h"

namespace sm100sim::parts {
namespace {

using namespace tensorcore;

constexpr const char* kKinds[] = {"f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"};
constexpr const char* kVectors[] = {"", "1X", "2X", "4X", "block32", "block16"};
constexpr const char* kShapes[] = {"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"};
constexpr const char* kCopies[] = {
    "128x256b",      "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23",
    "32x128b.warpx4"};
constexpr const char* kSources[] = {"", "b6x16_p32", "b4x16_p64"};

struct ArrayShared : SharedPort {
  const uint8_t* data;
  const uint8_t* bad;
  uint8_t* touched;
  size_t size;
  ArrayShared(const Input<uint8_t>& memory, const Input<uint8_t>& poison,
              Array<uint8_t>& read_marks)
      : data(memory.data()),
        bad(poison.data()),
        touched(read_marks.data()),
        size(memory.shape(1)) {}
  uint16_t read(int cta, uint32_t address, void* out, int bytes) override {
    if (address + bytes > size)
      throw std::out_of_range("shared address " + std::to_string(address));
    const size_t at = cta * size + address;
    std::memcpy(out, data + at, bytes);
    uint16_t mask = 0;
    for (int i = 0; i < bytes; ++i) {
      mask |= static_cast<uint16_t>((bad[at + i] != 0) << i);
      touched[at + i] = 1;
    }
    return mask;
  }
};

struct ArrayTmem : TmemPort {
  uint32_t* data;
  uint8_t* bad;
  ArrayTmem(Array<uint32_t>& words, Array<uint8_t>& poison)
      : data(words.data()), bad(poison.data()) {}
  size_t at(int cta, int lane, int column) const {
    return (static_cast<size_t>(cta) * kTmemLanes + lane) * kTmemColumns + column;
  }
  void read(int cta, int lane, int column, int columns, uint32_t* words, uint8_t* poison) override {
    std::memcpy(words, data + at(cta, lane, column), 4 * columns);
    std::memcpy(poison, bad + at(cta, lane, column), columns);
  }
  void write(int cta, int lane, int column, int columns, const uint32_t* words,
             const uint8_t* poison) override {
    std::memcpy(data + at(cta, lane, column), words, 4 * columns);
    std::memcpy(bad + at(cta, lane, column), poison, columns);
  }
};

InstructionContext context(const std::string& kind, int cta_group, const std::string& vector,
                           bool ws, bool specific) {
  return {by_name<Kind>(kKinds, kind), cta_group, by_name<ScaleVector>(kVectors, vector), ws,
          specific};
}

MmaRequest request(const InstructionContext& c, nb::dict d) {
  MmaRequest r;
  r.context = c;
  auto number = [&](const char* key, uint64_t otherwise) {
    return d.contains(key) ? nb::cast<uint64_t>(d[key]) : otherwise;
  };
  r.d_tmem = static_cast<uint32_t>(number("d", 0));
  r.a_in_tmem = number("a_in_tmem", 0);
  r.a = number("a", 0);
  r.b = number("b", 0);
  r.instruction = static_cast<uint32_t>(number("idesc", 0));
  r.scale_a_tmem = static_cast<uint32_t>(number("sfa", 0));
  r.scale_b_tmem = static_cast<uint32_t>(number("sfb", 0));
  r.enable_input_d = number("enable", 1);
  r.scale_input_d = static_cast<int>(number("scale_input_d", 0));
  r.arithmetic = static_cast<Arithmetic>(number("exact", 0));
  if (d.contains("disable")) {
    const auto words = nb::cast<std::vector<uint32_t>>(d["disable"]);
    for (size_t i = 0; i < words.size() && i < 8; ++i) r.disable_output_lane[i] = words[i];
  }
  return r;
}

nb::dict describe(const InstructionDescriptor& d) {
  nb::dict out;
  out["a"] = numerics::info(d.a).name;
  out["b"] = numerics::info(d.b).name;
  out["d"] = numerics::info(d.d).name;
  out["m"] = d.m;
  out["n"] = d.n;
  out["k"] = d.k;
  out["negate"] = nb::make_tuple(d.negate_a, d.negate_b);
  out["transpose"] = nb::make_tuple(d.transpose_a, d.transpose_b);
  out["scale"] = numerics::info(d.scale).name;
  out["ids"] = nb::make_tuple(d.scale_a_id, d.scale_b_id);
  out["scales"] = d.scales_per_row;
  return out;
}

// Processor time of this thread: other processes on the machine do not count.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void bind_mma(nb::module_& m) {
  m.def("mma", [](const std::string& kind, int cta_group, const std::string& vector, bool ws,
                  nb::dict d, const Input<uint8_t>& shared, const Input<uint8_t>& shared_poison,
                  Array<uint32_t> tmem, Array<uint8_t> tmem_poison, Array<uint8_t> touched) {
    Mma mma(request(context(kind, cta_group, vector, ws, true), d));
    if (!mma.errors().empty()) return mma.errors();
    ArrayShared s(shared, shared_poison, touched);
    ArrayTmem t(tmem, tmem_poison);
    mma.fetch(s, t);
    mma.accumulate(t);
    return mma.errors();
  });
  m.def("mma_seconds",
        [](const std::string& kind, int cta_group, const std::string& vector, nb::dict d,
           const Input<uint8_t>& shared, Array<uint32_t> tmem, int times) {
          Array<uint8_t> zeros = make_array<uint8_t>({shared.size()}),
                         bad = make_array<uint8_t>({tmem.size()});
          const Input<uint8_t> poison(zeros);
          ArrayShared s(shared, poison, zeros);
          ArrayTmem t(tmem, bad);
          double fetch = 0, accumulate = 0;
          uint64_t macs = 0;
          for (int i = 0; i < times; ++i) {
            Mma mma(request(context(kind, cta_group, vector, false, true), d));
            if (!mma.errors().empty()) throw std::invalid_argument(mma.errors()[0]);
            const double start = seconds();
            mma.fetch(s, t);
            const double middle = seconds();
            mma.accumulate(t);
            fetch += middle - start;
            accumulate += seconds() - middle;
            macs += mma.multiply_adds();
          }
          return nb::make_tuple(fetch, accumulate, macs);
        });
  m.def("mma_footprint",
        [](const std::string& kind, int cta_group, const std::string& vector, nb::dict d) {
          Mma mma(request(context(kind, cta_group, vector, false, true), d));
          std::vector<SharedRange> shared;
          std::vector<TmemRect> tmem;
          mma.footprint(&shared, &tmem);
          nb::list a, b;
          for (const SharedRange& r : shared) a.append(nb::make_tuple(r.cta, r.address, r.bytes));
          for (const TmemRect& r : tmem)
            b.append(nb::make_tuple(r.cta, r.lane, r.lanes, r.column, r.columns, r.write));
          return nb::make_tuple(a, b);
        });
  m.def("d_cells",
        [](const std::string& kind, int cta_group, bool ws, uint32_t idesc, uint32_t d_tmem) {
          MmaRequest r;
          r.context = context(kind, cta_group, kind == "mxf4nvf4" ? "4X" : "", ws, true);
          r.instruction = idesc;
          r.d_tmem = d_tmem;
          r.a = r.b = uint64_t{1} << 46;
          Mma mma(r);
          if (!mma.errors().empty()) throw std::invalid_argument(mma.errors()[0]);
          Array<int32_t> out = make_array<int32_t>({static_cast<size_t>(mma.rows_per_cta()),
                                                    static_cast<size_t>(mma.descriptor().n), 2});
          int32_t* p = out.data();
          for (int row = 0; row < mma.rows_per_cta(); ++row)
            for (int column = 0; column < mma.descriptor().n; ++column, p += 2) {
              const DCell at = mma.d_cell(row, column);
              p[0] = at.lane;
              p[1] = at.column;
            }
          return out;
        });
}

void bind_descriptors(nb::module_& m) {
  m.def("matrix_descriptor", [](uint64_t bits) {
    Errors errors;
    const MatrixDescriptor d = decode_matrix_descriptor(bits, "desc", &errors);
    return nb::make_tuple(d.start, d.leading, d.stride, d.base_offset, static_cast<int>(d.swizzle),
                          errors);
  });
  m.def("instruction_descriptor", [](uint32_t bits, const std::string& kind, int cta_group,
                                     const std::string& vector, bool ws, bool specific) {
    Errors errors;
    const InstructionDescriptor d = decode_instruction_descriptor(
        bits, context(kind, cta_group, vector, ws, specific), &errors);
    return nb::make_tuple(describe(d), errors);
  });
  m.def("operand_chunks", [](uint64_t bits, bool mn_major, int rows, int depth) {
    Errors errors;
    const MatrixDescriptor d = decode_matrix_descriptor(bits, "desc", &errors);
    Array<uint32_t> out =
        make_array<uint32_t>({static_cast<size_t>(rows), static_cast<size_t>(depth)});
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < depth; ++j)
        out.data()[i * depth + j] = mn_major ? mn_major_chunk(d, i, j) : k_major_chunk(d, i, j);
    return out;
  });
  m.def("scale_cell", [](int row, int block, int id, int partition) {
    const ScaleCell cell = scale_cell(row, block, id, partition);
    return nb::make_tuple(cell.lane, cell.column, cell.byte);
  });
}

void bind_moves(nb::module_& m) {
  m.def("fragment", [](const std::string& shape, int repeat, bool packed, int split) {
    const Fragment f{by_name<FragmentShape>(kShapes, shape), repeat, packed, split};
    const std::string wrong = check(f);
    if (!wrong.empty()) throw std::invalid_argument(wrong);
    const int regs = registers(f);
    Array<int32_t> out = make_array<int32_t>({32, static_cast<size_t>(regs), 2});
    for (int thread = 0; thread < 32; ++thread)
      for (int reg = 0; reg < regs; ++reg) {
        const FragmentCell at = cell(f, thread, reg);
        out.data()[(thread * regs + reg) * 2] = at.lane;
        out.data()[(thread * regs + reg) * 2 + 1] = at.column;
      }
    return out;
  });
  m.def("tmem_load", [](const std::string& shape, int repeat, bool packed, int split,
                        uint32_t address, int warp, Array<uint32_t> tmem, Array<uint8_t> bad) {
    const Fragment f{by_name<FragmentShape>(kShapes, shape), repeat, packed, split};
    const size_t regs = static_cast<size_t>(registers(f));
    Array<uint32_t> values = make_array<uint32_t>({regs, 32});
    Array<uint8_t> poison = make_array<uint8_t>({regs, 32});
    ArrayTmem port(tmem, bad);
    const std::string wrong = load(f, address, warp, 0, port, values.data(), poison.data());
    return nb::make_tuple(wrong, values, poison);
  });
  m.def("tmem_store", [](const std::string& shape, int repeat, bool packed, int split,
                         uint32_t address, int warp, Array<uint32_t> tmem, Array<uint8_t> bad,
                         const Input<uint32_t>& values, const Input<uint8_t>& poison) {
    const Fragment f{by_name<FragmentShape>(kShapes, shape), repeat, packed, split};
    ArrayTmem port(tmem, bad);
    return store(f, address, warp, 0, port, values.data(), poison.data());
  });
  m.def("tmem_copy",
        [](const std::string& shape, const std::string& source, uint32_t address,
           uint64_t descriptor, const Input<uint8_t>& shared, const Input<uint8_t>& shared_poison,
           Array<uint32_t> tmem, Array<uint8_t> bad, Array<uint8_t> touched) {
          const TmemCopy copy{by_name<CopyShape>(kCopies, shape),
                              by_name<CopySource>(kSources, source), address, descriptor};
          Errors errors = check(copy);
          if (!errors.empty()) return errors;
          ArrayShared s(shared, shared_poison, touched);
          ArrayTmem t(tmem, bad);
          run(copy, 0, s, t);
          return errors;
        });
  m.def("tmem_copy_lanes", [](const std::string& shape) {
    const auto s = by_name<CopyShape>(kCopies, shape);
    nb::list out;
    for (int row = 0; row < copy_rows(s); ++row) {
      int lanes[4];
      const int n = copy_lanes(s, row, lanes);
      out.append(std::vector<int>(lanes, lanes + n));
    }
    return out;
  });
  m.def("tmem_shift", [](uint32_t address, Array<uint32_t> tmem, Array<uint8_t> bad) {
    ArrayTmem t(tmem, bad);
    Errors errors = check_shift(address);
    if (errors.empty()) run_shift(address, 0, t);
    return errors;
  });
  nb::class_<Tmem>(m, "Tmem")
      .def(nb::init<>())
      .def("allocate", &Tmem::allocate)
      .def("deallocate",
           [](Tmem& t, int column, int columns, int owner) {
             std::string why;
             t.deallocate(column, columns, owner, &why);
             return why;
           })
      .def("owner", &Tmem::owner)
      .def("allocated_columns", &Tmem::allocated_columns);
  m.def("check_allocation_size", &check_allocation_size);
}

}  // namespace

void bind_tensorcore(nb::module_& m) {
  bind_descriptors(m);
  bind_mma(m);
  bind_moves(m);
}

}  // namespace sm100sim::parts
