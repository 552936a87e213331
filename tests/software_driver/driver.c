// A driver without a GPU, as far as PyNvVideoCodec calls one: `libcuda`, `libnvcuvid` and
// `libnvidia-encode` for tests. "Device memory" is the host's. A stream is decoded by what
// `software_driver.set_decoder` names; this file keeps surfaces, and calls the callbacks that a
// parser calls. It has what NVIDIA's documentation of the interfaces promises, and is strict:
// a surface that is mapped twice, a frame read after it was unmapped, or a full set of output
// surfaces are errors here, or give pictures that are wrong.
//
// Structures have the names and places of CUDA 13's and of the Video Codec SDK 13's, as far as
// they are used.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef int Result;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_HANDLE = 400 };

// An error, told on the error stream: the package's own message does not name the call.
static Result refused_in(const char *call, Result error) {
  fprintf(stderr, "software driver: %s answers %d\n", call, error);
  return error;
}
#define refused(error) refused_in(__func__, error)

// A failure on demand: a call answers what `software_fail` says. It is asked in libcuda, for all.
Result software_answer(const char *call);
#define ANSWER do { Result error = software_answer(__func__); if (error) return refused(error); } while (0)

// The calls that move data or order work, for tests that ask on which stream they are.
#define TRACE(...) do { if (getenv("SOFTWARE_TRACE")) fprintf(stderr, __VA_ARGS__); } while (0)

#ifdef LIBCUDA

static int context_of_all, stream_of_all;
EXPORT long software_bytes = 0, software_peak = 0;

static struct { char call[64]; int at; Result with, stays; } failure;
static volatile int hangs, lost;

// The call fails at its `at`-th time from now on. `stays`: so does every call after it. `hang`: it
// returns only after the next `software_fail`.
EXPORT void software_fail(const char *call, int at, Result with, int stays, int hang) {
  hangs = hang;
  lost = SUCCESS;
  strncpy(failure.call, call, sizeof failure.call - 1);
  failure.at = at;
  failure.with = with;
  failure.stays = stays;
}

EXPORT Result software_answer(const char *call) {
  if (lost) return lost;
  if (strcmp(call, failure.call) || --failure.at) return SUCCESS;
  Result with = failure.with;
  if (failure.stays) lost = with;
  while (hangs) usleep(1000);
  return with;
}

static Result allocate(uint64_t *pointer, size_t bytes) {
  // What is freed twice or written past its end is found by the C library's own checks.
  size_t *held = NULL;
  if (posix_memalign((void **)&held, 256, bytes + 256)) return refused(OUT_OF_MEMORY);
  held[0] = bytes;
  memset((char *)held + 256, 0xA5, bytes);
  *pointer = (uint64_t)held + 256;
  long now = __atomic_add_fetch(&software_bytes, (long)bytes, __ATOMIC_SEQ_CST);
  if (now > software_peak) software_peak = now;
  return SUCCESS;
}

static Result release(uint64_t pointer) {
  if (!pointer) return SUCCESS;
  size_t *held = (size_t *)(pointer - 256);
  __atomic_sub_fetch(&software_bytes, (long)held[0], __ATOMIC_SEQ_CST);
  memset((void *)pointer, 0x4D, held[0]);
  free(held);
  return SUCCESS;
}

typedef struct {
  size_t src_x, src_y;
  int src_type;
  const void *src_host;
  uint64_t src_device;
  void *src_array;
  size_t src_pitch, dst_x, dst_y;
  int dst_type;
  void *dst_host;
  uint64_t dst_device;
  void *dst_array;
  size_t dst_pitch, width, height;
} Copy2D;

static Result copy(const Copy2D *c) {
  const char *from = c->src_type == 1 ? c->src_host : (const char *)c->src_device;
  char *to = c->dst_type == 1 ? c->dst_host : (char *)c->dst_device;
  if (!from || !to || c->width > c->src_pitch || c->width > c->dst_pitch) return refused(INVALID_VALUE);
  for (size_t row = 0; row < c->height; row++)
    memcpy(to + (c->dst_y + row) * c->dst_pitch + c->dst_x,
           from + (c->src_y + row) * c->src_pitch + c->src_x, c->width);
  return SUCCESS;
}

EXPORT Result cuInit(unsigned flags) { return SUCCESS; }
EXPORT Result cuDriverGetVersion(int *v) { *v = 13000; return SUCCESS; }
EXPORT Result cuDeviceGetCount(int *n) { *n = 1; return SUCCESS; }
EXPORT Result cuDeviceGet(int *d, int n) { *d = n; return n == 0 ? SUCCESS : refused(101); }
EXPORT Result cuDevicePrimaryCtxRetain(void **c, int d) { TRACE("cuDevicePrimaryCtxRetain\n"); *c = &context_of_all; return SUCCESS; }
EXPORT Result cuDevicePrimaryCtxRelease_v2(int d) { TRACE("cuDevicePrimaryCtxRelease_v2\n"); return SUCCESS; }
EXPORT Result cuCtxCreate_v2(void **c, unsigned f, int d) { TRACE("cuCtxCreate_v2\n"); *c = &context_of_all; return SUCCESS; }
EXPORT Result cuCtxDestroy_v2(void *c) { TRACE("cuCtxDestroy_v2\n"); return SUCCESS; }
EXPORT Result cuCtxPushCurrent_v2(void *c) { TRACE("cuCtxPushCurrent_v2\n"); ANSWER; return c ? SUCCESS : refused(201); }
EXPORT Result cuCtxPopCurrent_v2(void **c) { if (c) *c = &context_of_all; return SUCCESS; }
EXPORT Result cuCtxGetDevice(int *d) { TRACE("cuCtxGetDevice\n"); *d = 0; return SUCCESS; }
EXPORT Result cuStreamCreate(void **s, unsigned f) { TRACE("cuStreamCreate\n"); *s = &stream_of_all; return SUCCESS; }
EXPORT Result cuStreamDestroy_v2(void *s) { return SUCCESS; }
EXPORT Result cuStreamGetCtx(void *s, void **c) { TRACE("cuStreamGetCtx\n"); *c = &context_of_all; return SUCCESS; }
EXPORT Result cuStreamSynchronize(void *s) { TRACE("cuStreamSynchronize %p\n", s); ANSWER; return SUCCESS; }
EXPORT Result cuStreamWaitEvent(void *s, void *e, unsigned f) { TRACE("cuStreamWaitEvent %p\n", s); return SUCCESS; }
EXPORT Result cuEventCreate(void **e, unsigned f) { TRACE("cuEventCreate\n"); *e = malloc(8); return SUCCESS; }
EXPORT Result cuEventDestroy_v2(void *e) { TRACE("cuEventDestroy_v2\n"); free(e); return SUCCESS; }
EXPORT Result cuEventRecord(void *e, void *s) { TRACE("cuEventRecord %p\n", s); ANSWER; return SUCCESS; }
EXPORT Result cuEventSynchronize(void *e) { TRACE("cuEventSynchronize\n"); return SUCCESS; }
EXPORT Result cuMemAlloc_v2(uint64_t *p, size_t n) { TRACE("cuMemAlloc_v2\n"); ANSWER; return allocate(p, n); }
EXPORT Result cuMemAllocAsync(uint64_t *p, size_t n, void *s) { TRACE("cuMemAllocAsync\n"); ANSWER; return allocate(p, n); }
EXPORT Result cuMemAllocPitch_v2(uint64_t *p, size_t *pitch, size_t width, size_t rows, unsigned e) {
  *pitch = (width + 511) / 512 * 512;
  return allocate(p, *pitch * rows);
}
EXPORT Result cuMemFree_v2(uint64_t p) { TRACE("cuMemFree_v2\n"); return release(p); }
EXPORT Result cuMemFreeAsync(uint64_t p, void *s) { TRACE("cuMemFreeAsync\n"); return release(p); }
EXPORT Result cuMemcpy2D_v2(const Copy2D *c) { TRACE("cuMemcpy2D\n"); ANSWER; return copy(c); }
EXPORT Result cuMemcpy2DAsync_v2(const Copy2D *c, void *s) { TRACE("cuMemcpy2DAsync %p\n", s); ANSWER; return copy(c); }
EXPORT Result cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { memcpy(to, (void *)from, n); return SUCCESS; }
EXPORT Result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) { memcpy(to, (void *)from, n); return SUCCESS; }
EXPORT Result cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { memcpy((void *)to, from, n); return SUCCESS; }
EXPORT Result cuPointerGetAttribute(void *data, int attribute, uint64_t p) {
  if (attribute == 1) { *(void **)data = &context_of_all; return SUCCESS; }  // its context
  if (attribute == 2) { *(unsigned *)data = 2; return SUCCESS; }             // device memory
  if (attribute == 3) { *(uint64_t *)data = p; return SUCCESS; }             // as the device sees it
  if (attribute == 9) { *(int *)data = 0; return SUCCESS; }                  // its device
  return refused(INVALID_VALUE);
}
EXPORT Result cuGetErrorName(Result r, const char **name) { *name = "CUDA_ERROR_SOFTWARE"; return SUCCESS; }
EXPORT Result cuGetErrorString(Result r, const char **text) { *text = "error of the software driver"; return SUCCESS; }

#endif
#ifdef LIBNVCUVID

Result cuMemAllocPitch_v2(uint64_t *p, size_t *pitch, size_t width, size_t rows, unsigned e);
Result cuMemFree_v2(uint64_t p);

typedef struct {
  int codec;
  unsigned rate_num, rate_den;
  unsigned char progressive, luma_bits_minus8, chroma_bits_minus8, min_surfaces;
  unsigned coded_width, coded_height;
  int left, top, right, bottom, chroma;
  unsigned bitrate;
  int aspect_x, aspect_y;
  unsigned char signal[4];
  unsigned header_bytes;
} Format;

typedef struct {
  int index, progressive, top_first, repeat_first;
  long long timestamp;
} Shown;

typedef struct { int width_mbs, height_mbs, index; unsigned char rest[4096]; } Picture;

typedef struct {
  int codec;
  unsigned n_surfaces, clock_rate, error_threshold, display_delay, annexb, reserved[4];
  void *user;
  int (*on_sequence)(void *, Format *);
  int (*on_picture)(void *, Picture *);
  int (*on_display)(void *, Shown *);
  void *more[8];
} ParserParams;

typedef struct {
  unsigned long flags, bytes;
  const unsigned char *payload;
  long long timestamp;
} Packet;

typedef struct {
  unsigned long width, height, n_surfaces;
  int codec, chroma;
  unsigned long flags, bits_minus8, intra_only, max_width, max_height, reserved;
  short left, top, right, bottom;
  int output_format, deinterlace;
  unsigned long target_width, target_height, n_outputs;
} CreateInfo;

typedef struct {
  int codec, chroma;
  unsigned bits_minus8, reserved[3];
  unsigned char is_supported, n_engines;
  unsigned short formats;
  unsigned max_width, max_height, max_blocks;
  unsigned short min_width, min_height;
  unsigned char rest[44];
} Caps;

typedef struct {
  unsigned long width, height, target_width, target_height, n_surfaces;
} ReconfigureInfo;

typedef struct Queued {
  struct Queued *next;
  int width, height, bits;
  size_t row_bytes;
  long long timestamp;
  unsigned char rows[];
} Queued;

typedef struct {
  ParserParams params;
  long number;
  int next_surface, n_surfaces, width, height, bits;
  Queued *first, **end;
} Parser;

typedef struct {
  CreateInfo info;
  size_t row_bytes, bytes;
  unsigned char *surfaces;
  char *is_decoded;
  uint64_t *outputs;
  size_t *pitches;
  char *is_mapped;
} Decoder;

// What Python decodes with: it calls `software_queue` for what it finds.
typedef long (*OnOpen)(void *parser, int codec);
typedef int (*OnData)(long number, unsigned long flags, const unsigned char *payload, unsigned long bytes, long long timestamp);
typedef void (*OnClose)(long number);
static OnOpen on_open;
static OnData on_data;
static OnClose on_close;
static __thread Queued *pending;
EXPORT int software_decoders = 0;
EXPORT int software_made = 0;
EXPORT int software_wait_us = 0;  // Time that an engine takes for a picture.

EXPORT void software_callbacks(OnOpen opens, OnData takes, OnClose closes) {
  on_open = opens;
  on_data = takes;
  on_close = closes;
}

EXPORT Result cuvidCtxLockCreate(void **lock, void *context) { *lock = malloc(8); return SUCCESS; }
EXPORT Result cuvidCtxLockDestroy(void *lock) { free(lock); return SUCCESS; }
EXPORT Result cuvidCtxLock(void *lock, unsigned flags) { return SUCCESS; }
EXPORT Result cuvidCtxUnlock(void *lock, unsigned flags) { return SUCCESS; }

EXPORT Result cuvidGetDecoderCaps(Caps *caps) {
  ANSWER;
  // Engines as an H100's, and H.264 of 10 bits, which newer ones decode.
  memset(&caps->is_supported, 0, sizeof *caps - 24);
  int known = caps->codec == 1 || caps->codec == 4 || caps->codec == 8 || caps->codec == 10 || caps->codec == 11;
  int deep = caps->bits_minus8 == 2 && caps->codec != 1;
  caps->is_supported = known && caps->chroma == 1 && (caps->bits_minus8 == 0 || deep);
  if (!caps->is_supported) return SUCCESS;
  caps->n_engines = 7;
  caps->formats = caps->bits_minus8 ? 3 : 1;
  caps->max_width = caps->max_height = caps->codec == 4 ? 4096 : 8192;
  caps->max_blocks = caps->max_width * caps->max_height / 256;
  caps->min_width = caps->codec == 4 ? 48 : 144;
  caps->min_height = caps->codec == 4 ? 16 : 144;
  return SUCCESS;
}

EXPORT Result cuvidCreateVideoParser(void **made, ParserParams *params) {
  ANSWER;
  if (!params->on_sequence || !params->on_picture) return refused(INVALID_VALUE);
  Parser *parser = calloc(1, sizeof *parser);
  parser->params = *params;
  parser->n_surfaces = params->n_surfaces ? params->n_surfaces : 1;
  parser->end = &parser->first;
  parser->number = on_open(parser, params->codec);
  *made = parser;
  return SUCCESS;
}

// A new sequence, as the parser tells of one. 0: the application refused it.
static int begun(Parser *parser, const Queued *q) {
  Format format = {.codec = parser->params.codec, .rate_num = 25, .rate_den = 1,
                   .progressive = 1, .luma_bits_minus8 = q->bits - 8,
                   .chroma_bits_minus8 = q->bits - 8, .min_surfaces = 6,
                   .coded_width = (q->width + 15) / 16 * 16,
                   .coded_height = (q->height + 15) / 16 * 16, .right = q->width,
                   .bottom = q->height, .chroma = 1, .aspect_x = q->width, .aspect_y = q->height};
  parser->width = q->width;
  parser->height = q->height;
  parser->bits = q->bits;
  int answer = parser->params.on_sequence(parser->params.user, &format);
  if (answer > 1) parser->n_surfaces = answer;
  parser->next_surface = 0;
  return answer;
}

// A picture that was decoded. 0: the application failed.
static int shown(Parser *parser, Queued *q) {
  if (q->width != parser->width || q->height != parser->height || q->bits != parser->bits)
    if (!begun(parser, q)) return 0;
  Picture told = {.index = parser->next_surface};
  parser->next_surface = (parser->next_surface + 1) % parser->n_surfaces;
  pending = q;
  int done = parser->params.on_picture(parser->params.user, &told);
  pending = NULL;
  if (!done) return 0;
  Shown shown = {.index = told.index, .progressive = 1, .timestamp = q->timestamp};
  return parser->params.on_display ? parser->params.on_display(parser->params.user, &shown) : 1;
}

// Takes a picture from Python: NV12 or P016, rows without gaps.
EXPORT void software_queue(void *given, const unsigned char *rows, size_t row_bytes, int width,
                           int height, int bits, long long timestamp) {
  Parser *parser = given;
  size_t bytes = row_bytes * (height * 3 / 2);
  Queued *q = calloc(1, sizeof *q + bytes);
  q->width = width;
  q->height = height;
  q->bits = bits;
  q->row_bytes = row_bytes;
  q->timestamp = timestamp;
  memcpy(q->rows, rows, bytes);
  *parser->end = q;
  parser->end = &q->next;
}

EXPORT Result cuvidParseVideoData(void *given, Packet *packet) {
  Parser *parser = given;
  Result result = on_data(parser->number, packet->flags, packet->payload, packet->bytes, packet->timestamp);
  // Called here and not from Python, because the application's callbacks throw C++ exceptions.
  while (parser->first) {
    Queued *q = parser->first;
    parser->first = q->next;
    if (!q->next) parser->end = &parser->first;
    if (!result && !shown(parser, q)) result = 999;
    free(q);
  }
  if (packet->flags & 1) parser->width = 0;  // behind the end of a stream begins a sequence
  return result;
}

EXPORT Result cuvidDestroyVideoParser(void *given) {
  Parser *parser = given;
  on_close(parser->number);
  for (Queued *q; (q = parser->first); free(q)) parser->first = q->next;
  free(parser);
  return SUCCESS;
}

EXPORT Result cuvidCreateDecoder(void **made, CreateInfo *info) {
  ANSWER;
  if (!info->n_surfaces || !info->n_outputs || info->target_width % 2 || info->output_format > 1)
    return refused(INVALID_VALUE);
  Decoder *decoder = calloc(1, sizeof *decoder);
  decoder->info = *info;
  decoder->row_bytes = info->target_width * (info->output_format ? 2 : 1);
  decoder->bytes = decoder->row_bytes * (info->target_height * 3 / 2);
  decoder->surfaces = malloc(decoder->bytes * info->n_surfaces);
  decoder->is_decoded = calloc(info->n_surfaces, 1);
  decoder->outputs = calloc(info->n_outputs, 8);
  decoder->pitches = calloc(info->n_outputs, sizeof(size_t));
  decoder->is_mapped = calloc(info->n_outputs, 1);
  for (unsigned long i = 0; i < info->n_outputs; i++)
    cuMemAllocPitch_v2(&decoder->outputs[i], &decoder->pitches[i], decoder->row_bytes,
                       info->target_height * 3 / 2, 16);
  __atomic_add_fetch(&software_decoders, 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&software_made, 1, __ATOMIC_SEQ_CST);
  *made = decoder;
  return SUCCESS;
}

EXPORT Result cuvidDestroyDecoder(void *given) {
  Decoder *decoder = given;
  for (unsigned long i = 0; i < decoder->info.n_outputs; i++) cuMemFree_v2(decoder->outputs[i]);
  free(decoder->surfaces);
  free(decoder->is_decoded);
  free(decoder->outputs);
  free(decoder->pitches);
  free(decoder->is_mapped);
  free(decoder);
  __atomic_sub_fetch(&software_decoders, 1, __ATOMIC_SEQ_CST);
  return SUCCESS;
}

// As NVDEC: pictures of the new coded size are scaled to the target.
EXPORT Result cuvidReconfigureDecoder(void *given, ReconfigureInfo *info) {
  ANSWER;
  Decoder *decoder = given;
  if (info->width > decoder->info.max_width || info->height > decoder->info.max_height ||
      info->target_width != decoder->info.target_width || info->target_height != decoder->info.target_height)
    return refused(INVALID_VALUE);
  decoder->info.width = info->width;
  decoder->info.height = info->height;
  return SUCCESS;
}

EXPORT Result cuvidDecodePicture(void *given, Picture *picture) {
  ANSWER;
  Decoder *decoder = given;
  if (!pending || picture->index < 0 || picture->index >= (int)decoder->info.n_surfaces ||
      pending->row_bytes > decoder->row_bytes || pending->height > decoder->info.target_height)
    return refused(INVALID_VALUE);
  // A surface has whole blocks: below the picture, and right of it, lies what is not shown.
  unsigned char *surface = decoder->surfaces + decoder->bytes * picture->index;
  memset(surface, 0xB7, decoder->bytes);
  for (int row = 0; row < pending->height * 3 / 2; row++) {
    size_t at = row < pending->height ? row : decoder->info.target_height + row - pending->height;
    memcpy(surface + at * decoder->row_bytes, pending->rows + row * pending->row_bytes, pending->row_bytes);
  }
  decoder->is_decoded[picture->index] = 1;
  return SUCCESS;
}

EXPORT Result cuvidGetDecodeStatus(void *given, int index, int *status) {
  *status = 2;  // success
  return SUCCESS;
}

typedef struct {
  int progressive, second_field, top_first, unpaired;
  unsigned flags, zero;
  uint64_t raw_input;
  unsigned raw_pitch, raw_format;
  uint64_t raw_output;
  unsigned raw_output_pitch, reserved;
  void *stream;
} Processing;

EXPORT Result cuvidMapVideoFrame64(void *given, int index, uint64_t *pointer, unsigned *pitch, Processing *params) {
  TRACE("cuvidMapVideoFrame64 %p\n", params->stream);
  ANSWER;
  if (software_wait_us) usleep(software_wait_us);
  Decoder *decoder = given;
  if (index < 0 || index >= (int)decoder->info.n_surfaces || !decoder->is_decoded[index])
    return refused(INVALID_VALUE);
  for (unsigned long i = 0; i < decoder->info.n_outputs; i++) {
    if (decoder->is_mapped[i]) continue;
    decoder->is_mapped[i] = 1;
    const CreateInfo *info = &decoder->info;
    for (size_t row = 0; row < info->target_height * 3 / 2; row++) {
      size_t top = row < info->target_height ? 0 : info->target_height;
      size_t from = top + (row - top) * info->height / info->target_height;
      unsigned char *to = (unsigned char *)decoder->outputs[i] + row * decoder->pitches[i];
      const unsigned char *rows = decoder->surfaces + decoder->bytes * index + from * decoder->row_bytes;
      size_t unit = (info->output_format ? 2 : 1) * (top ? 2 : 1);
      if (info->width == info->target_width) unit = decoder->row_bytes;
      for (size_t x = 0; x < decoder->row_bytes; x += unit)
        memcpy(to + x, rows + x / unit * info->width / info->target_width * unit, unit);
    }
    *pointer = decoder->outputs[i];
    *pitch = decoder->pitches[i];
    return SUCCESS;
  }
  return refused(205);
}

EXPORT Result cuvidUnmapVideoFrame64(void *given, uint64_t pointer) {
  TRACE("cuvidUnmapVideoFrame64\n");
  Decoder *decoder = given;
  for (unsigned long i = 0; i < decoder->info.n_outputs; i++) {
    if (decoder->outputs[i] != pointer || !decoder->is_mapped[i]) continue;
    decoder->is_mapped[i] = 0;
    memset((void *)pointer, 0x4D, decoder->pitches[i] * (decoder->info.target_height * 3 / 2));
    return SUCCESS;
  }
  return refused(INVALID_VALUE);
}

// Demuxers that the extension module wants to find, and never calls here.
EXPORT Result cuvidCreateVideoSource(void **s, const char *n, void *p) { return refused(INVALID_VALUE); }
EXPORT Result cuvidCreateVideoSourceW(void **s, const void *n, void *p) { return refused(INVALID_VALUE); }
EXPORT Result cuvidDestroyVideoSource(void *s) { return refused(INVALID_VALUE); }
EXPORT Result cuvidSetVideoSourceState(void *s, int state) { return refused(INVALID_VALUE); }
EXPORT int cuvidGetVideoSourceState(void *s) { return -1; }
EXPORT Result cuvidGetSourceVideoFormat(void *s, void *f, unsigned n) { return refused(INVALID_VALUE); }
EXPORT Result cuvidGetSourceAudioFormat(void *s, void *f, unsigned n) { return refused(INVALID_VALUE); }

#endif
#ifdef LIBNVENCODE

EXPORT int NvEncodeAPIGetMaxSupportedVersion(uint32_t *version) { *version = 13 << 4; return 0; }
EXPORT int NvEncodeAPICreateInstance(void *functions) { return 2; }

#endif
