#include "bindings/names.h"

#include "bindings/convert.h"

namespace tdbg::bindings {

WriterRole ParseRole(const std::string& role) {
  if (role == "train") {
    return WriterRole::kTrain;
  }
  if (role == "engine") {
    return WriterRole::kEngine;
  }
  if (role == "profiler") {
    return WriterRole::kProfiler;
  }
  Throw(Status::InvalidArgument(
      "role must be 'train', 'engine' or 'profiler', not '" + role + "'"));
}

Overflow ParseOverflow(const std::string& overflow) {
  if (overflow == "block") {
    return Overflow::kBlock;
  }
  if (overflow == "drop") {
    return Overflow::kDrop;
  }
  if (overflow == "sample") {
    return Overflow::kSample;
  }
  Throw(Status::InvalidArgument(
      "overflow must be 'block', 'drop' or 'sample', not '" + overflow + "'"));
}

CodecPolicy ParseCodec(const std::string& codec) {
  if (codec == "none") {
    return CodecPolicy::kNone;
  }
  if (codec == "auto") {
    return CodecPolicy::kAuto;
  }
  if (codec == "max") {
    return CodecPolicy::kMax;
  }
  Throw(Status::InvalidArgument("codec must be 'none', 'auto' or 'max', not '" +
                                codec + "'"));
}

const char* NameOf(GapReason reason) {
  switch (reason) {
    case GapReason::kQueueFull:
      return "queue_full";
    case GapReason::kDiskNearlyFull:
      return "disk_nearly_full";
    case GapReason::kIoError:
      return "io_error";
    case GapReason::kLargerThanQueue:
      return "larger_than_queue";
    case GapReason::kRefused:
      return "refused";
    case GapReason::kStalled:
      return "stalled";
    case GapReason::kSampled:
      return "sampled";
    case GapReason::kDeviceError:
      return "device_error";
    case GapReason::kRetention:
      return "retention";
  }
  return "unknown";
}

}  // namespace tdbg::bindings
