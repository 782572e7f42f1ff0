// A kernel with its arguments, which are copied when it is enqueued, as CUDA does.

#include <functional>
#include <tuple>

struct Kernel {
    const char* name;
    std::function<void(const unsigned*)> (*bind)(void** arguments);
};

template <auto KERNEL, typename... P, size_t... N>
std::function<void(const unsigned*)> bind_to(void** arguments, void (*)(P...),
                                             std::index_sequence<N...>) {
    std::tuple<P...> values{*(P*)arguments[N]...};
    return [values](const unsigned* shape) mutable {
        void* places[] = {&std::get<N>(values)...};
        const char kinds[] = {emulation::kind<P>()..., 0};
        emulation::launch<KERNEL>(KERNEL, "a kernel", shape, places, kinds);
    };
}

template <auto KERNEL, typename... P>
std::function<void(const unsigned*)> bind_all(void** arguments, void (*kernel)(P...)) {
    return bind_to<KERNEL>(arguments, kernel, std::index_sequence_for<P...>());
}

template <auto KERNEL>
std::function<void(const unsigned*)> bind(void** arguments) {
    return bind_all<KERNEL>(arguments, KERNEL);
}
