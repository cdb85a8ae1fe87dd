cimport cython


@cython.locals(i=Py_ssize_t, message=dict, places=list, roles=list, texts=list, others=list, text=unicode)
cpdef chat_texts(list messages)
@cython.locals(i=Py_ssize_t, size=Py_ssize_t, place=Py_ssize_t, lengths=list, widths=list, text=unicode)
cpdef joined_texts(list texts)
