"""A view that writes an order and its job in one transaction."""

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse

from shop.jobs import send_invoice
from shop.models import Order


def order(request: HttpRequest) -> JsonResponse:
    """Write an order; its invoice job exists if and only if the order does."""
    with transaction.atomic():
        made = Order.objects.create(customer=int(request.GET["customer"]))
        admission = send_invoice.options(connection=connection).enqueue_sync(made.pk)
        if "fail" in request.GET:
            raise RuntimeError("the shop is closed")
    return JsonResponse({"order": made.pk, "job": admission.job.id})
