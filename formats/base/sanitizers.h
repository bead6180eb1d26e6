/* Which sanitizers watch this build: gcc and clang say so in ways of their own, and of UBSan alone only
 * clang. */
#ifndef MOEC_FORMATS_SANITIZERS_H
#define MOEC_FORMATS_SANITIZERS_H

#if defined(__SANITIZE_ADDRESS__)
#define MOEC_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MOEC_HAS_ASAN 1
#endif
#endif
#ifndef MOEC_HAS_ASAN
#define MOEC_HAS_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__)
#define MOEC_HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MOEC_HAS_TSAN 1
#endif
#endif
#ifndef MOEC_HAS_TSAN
#define MOEC_HAS_TSAN 0
#endif

#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer)
#define MOEC_HAS_UBSAN 1
#endif
#endif
#ifndef MOEC_HAS_UBSAN
#define MOEC_HAS_UBSAN 0
#endif

#endif
